package ipfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs"
	"github.com/ipfs/go-cid"
	format "github.com/ipfs/go-ipld-format"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// counted is a listener that counts the bytes that a gateway could write.
type counted struct {
	net.Listener
	bytes atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(64 << 10) // a smaller buffer makes the count more exact
	}
	return &countedConn{c, l}, err
}

type countedConn struct {
	net.Conn
	l *counted
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.l.bytes.Add(int64(n))
	return n, err
}

// mostTime is shorter than a fetch that ends only by its Timeout or by the slow gateway's last byte.
const mostTime = 20 * time.Second

// measure fetches a document, and returns how long that took and how many bytes the process allocated in that time.
func measure(t *testing.T, f *ipfs.Fetcher, uri string, limit int64) (doc ipfs.Document, took time.Duration, allocated int64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	doc, err = f.Fetch(t.Context(), uri, limit)
	took = time.Since(start)
	runtime.ReadMemStats(&after)
	return doc, took, int64(after.TotalAlloc - before.TotalAlloc), err
}

// besieged is a set of files on an honest and on a hostile gateway.
type besieged struct {
	file, nested string            // URIs
	content      map[string][]byte // by URI
	bad, honest  string            // URLs
	name         string            // URI of a name for the file
	taken        *counted          // counts the bytes that the hostile gateway could write
	inner        *guardtest.Tripwire
}

func besiege(t testing.TB, h hostile, inner *guardtest.Tripwire) besieged {
	t.Helper()
	honest := ipfstest.New()
	content := map[string][]byte{"a/b.json": noise(40 << 10)}
	b := besieged{inner: inner}
	b.file = "ipfs://" + honest.AddFile(content["a/b.json"]).String()
	b.nested = "ipfs://" + honest.AddDirectory(content).String() + "/a/b.json"
	b.content = map[string][]byte{b.file: content["a/b.json"], b.nested: content["a/b.json"]}
	k := newKey(t, crypto.Ed25519)
	honest.AddRecord(k.name.String(), k.record(t, strings.Replace(b.file, "ipfs://", "/ipfs/", 1), 1, time.Hour, time.Minute))
	b.name = "ipns://" + k.name.String()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		right := httptest.NewRecorder()
		honest.Handler().ServeHTTP(right, r)
		h.serve(w, r, right.Body.Bytes())
	}))
	b.taken = &counted{Listener: srv.Listener}
	srv.Listener = b.taken
	srv.Start()
	t.Cleanup(srv.Close)
	b.bad, b.honest = srv.URL, serve(t, honest.Handler())
	return b
}

// TestHostileGateways fetches from each hostile gateway alone. Each fetch ends in time with the expected error and
// needs little memory and traffic. It is not parallel, because it measures the allocations of the whole process.
func TestHostileGateways(t *testing.T) {
	inner := guardtest.Listen(t, "127.0.0.1")
	for _, h := range hostilities(t, inner.Addr.String()) {
		t.Run(h.name, func(t *testing.T) {
			b := besiege(t, h, inner)
			cfg := ipfs.Config{Gateways: []string{b.bad}}
			if h.slow {
				cfg.TryTimeout = 250 * time.Millisecond
			}
			for uri, want := range map[string]string{b.file: h.file, b.nested: h.nested} {
				f := newFetcher(t, cfg)
				taken := b.taken.bytes.Load()
				doc, took, allocated, err := measure(t, f, uri, mib)
				f.Close()
				if kind(err) != want {
					t.Fatalf("%s: %s (%v), want %s", uri, kind(err), err, want)
				}
				switch {
				case err == nil && !bytes.Equal(doc.Bytes, b.content[uri]):
					t.Errorf("%s: %d wrong bytes", uri, len(doc.Bytes))
				case err != nil && !strings.Contains(err.Error(), h.says):
					t.Errorf("%s: %q does not say %q", uri, err, h.says)
				case err != nil && !h.slow && strings.Contains(err.Error(), "did not answer within"):
					t.Errorf("%s: only the deadline ended it: %v", uri, err)
				}
				if took > mostTime {
					t.Errorf("%s: it took %s, %s are allowed", uri, took, mostTime)
				}
				if allocated > h.most*mib {
					t.Errorf("%s: %d KiB were allocated, %d MiB are allowed", uri, allocated>>10, h.most)
				}
				// This allows for 2 MiB of a block, 3 MiB of a CAR, and the data that the kernel buffered before the
				// client stopped reading.
				if got := b.taken.bytes.Load() - taken; got > 12*mib {
					t.Errorf("%s: the gateway got rid of %d MiB", uri, got>>20)
				}
				var u *ipfs.UnavailableError
				if strings.HasPrefix(h.name, "429") && (!errors.As(err, &u) || u.RetryAfter < 16*time.Second-took || u.RetryAfter > 17*time.Second) {
					t.Errorf("%s: Retry-After: %v", uri, err)
				}
				t.Logf("%d ms, %d KiB allocated, %d KiB sent: %v", took.Milliseconds(), allocated>>10, (b.taken.bytes.Load()-taken)>>10, err)
			}
		})
	}
	heraldtest.Equal(t, "connections to where gateways redirected", inner.Connections(), 0)
}

// TestHonestBesideHostile: a hostile gateway that is asked first costs only time. Each fetch uses a new fetcher, so
// that nothing is cached and no gateway is known to lie.
func TestHonestBesideHostile(t *testing.T) {
	t.Parallel()
	const fetches = 24 // from each gateway
	inner := guardtest.Listen(t, "127.0.0.1")
	t.Run("all", func(t *testing.T) {
		for _, h := range hostilities(t, inner.Addr.String()) {
			t.Run(h.name, func(t *testing.T) {
				t.Parallel()
				b := besiege(t, h, inner)
				var next, good atomic.Int64
				var workers sync.WaitGroup
				for range 4 {
					workers.Go(func() {
						for next.Add(1) <= fetches {
							f := newFetcher(t, ipfs.Config{Gateways: []string{b.bad, b.honest}, Hedge: 10 * time.Millisecond, CacheBytes: -1})
							doc, err := f.Fetch(t.Context(), b.nested, mib)
							f.Close()
							switch {
							case err != nil:
								t.Error(err)
							case !bytes.Equal(doc.Bytes, b.content[b.nested]) || doc.Source != ipfs.SourceCID:
								t.Errorf("%d bytes, source %s", len(doc.Bytes), doc.Source)
							default:
								good.Add(1)
							}
						}
					})
				}
				workers.Wait()
				heraldtest.Equal(t, "fetches that succeeded", good.Load(), fetches)
			})
		}
	})
	heraldtest.Equal(t, "connections to where gateways redirected", inner.Connections(), 0)
}

// TestHostileWeb lets web servers misbehave in the same ways for a document of at most 1 MiB. A web server's document
// is not verified, so only endless or unreadable answers are refused. It is not parallel, because it measures memory.
func TestHostileWeb(t *testing.T) {
	inner := guardtest.Listen(t, "127.0.0.2")
	want := map[string]string{
		"half a body": "unavailable", "endless body": "large", "endless CAR of valid blocks": "large", "announced as huge": "large",
		"right answer, then endless junk": "large", "status 500 with endless body": "unavailable", "404 with endless body": "not found",
		"429 with Retry-After": "unavailable", "one byte each 200 ms": "unavailable", "headers one byte each 200 ms": "unavailable",
		"silence": "unavailable", "gzip bomb that nobody asked for": "large", "1 MiB of headers": "unavailable", "endless headers": "unavailable",
		"endless interim answers": "unavailable", "no HTTP": "unavailable", "redirect to this machine": "blocked",
		"redirect to the metadata service": "blocked", "empty CAR with 200": "not found",
	}
	for _, h := range hostilities(t, inner.Addr.String()) {
		if _, ok := want[h.name]; !ok {
			continue // a document with this content is valid
		}
		t.Run(h.name, func(t *testing.T) {
			base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, []byte("{}")) }))
			cfg := ipfs.Config{}
			if h.slow {
				cfg.Timeout = 250 * time.Millisecond
			}
			f := newFetcher(t, cfg)
			_, took, allocated, err := measure(t, f, base+"/agent.json", mib)
			if kind(err) != want[h.name] {
				t.Errorf("%s (%v), want %s", kind(err), err, want[h.name])
			}
			if took > mostTime {
				t.Errorf("it took %s, %s are allowed", took, mostTime)
			}
			if allocated > 8*mib {
				t.Errorf("%d KiB were allocated", allocated>>10)
			}
		})
	}
	heraldtest.Equal(t, "connections inward", inner.Connections(), 0)
}

// TestHostileRecords asks the same gateways for the record of a name.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	inner := guardtest.Listen(t, "127.0.0.1")
	for _, h := range hostilities(t, inner.Addr.String()) {
		t.Run(h.name, func(t *testing.T) {
			b := besiege(t, h, inner)
			cfg := ipfs.Config{Gateways: []string{b.bad}, Hedge: 10 * time.Millisecond}
			if h.slow {
				cfg.TryTimeout = 100 * time.Millisecond
			}
			wantKind(t, newFetcher(t, cfg), b.name, mib, h.file)
			cfg.Gateways = append(cfg.Gateways, b.honest)
			if h.slow { // the honest gateway answers, but its speed depends on the machine
				cfg.TryTimeout = 3 * time.Second
			}
			doc, err := newFetcher(t, cfg).Fetch(t.Context(), b.name, mib)
			if err != nil || !bytes.Equal(doc.Bytes, b.content[b.file]) || doc.Source != ipfs.SourceIPNS || doc.DNSLink {
				t.Errorf("with an honest gateway: %d bytes, source %s, %v", len(doc.Bytes), doc.Source, err)
			}
		})
	}
	heraldtest.Equal(t, "connections to where gateways redirected", inner.Connections(), 0)
}

// dagBomb adds nine blocks whose links fan out to 32^8 empty leaves, and returns the root.
func dagBomb(t testing.TB, g *ipfstest.Gateway) cid.Cid {
	t.Helper()
	leaf := unixfs.NewFSNode(unixfs.TFile)
	node := merkledag.NodeWithData(must[[]byte](t)(leaf.GetBytes()))
	for range 8 {
		g.AddBlock(node.RawData(), cid.DagProtobuf, multihash.SHA2_256)
		c := cid.NewCidV1(cid.DagProtobuf, node.Cid().Hash())
		fs := unixfs.NewFSNode(unixfs.TFile)
		parent := &merkledag.ProtoNode{}
		for range 32 {
			fs.AddBlockSize(0)
			child := node.Copy().(*merkledag.ProtoNode)
			child.SetCidBuilder(c.Prefix())
			heraldtest.Must(t, parent.AddNodeLink("", child))
		}
		parent.SetData(must[[]byte](t)(fs.GetBytes()))
		node = parent
	}
	return g.AddBlock(node.RawData(), cid.DagProtobuf, multihash.SHA2_256)
}

// TestDAGBomb: valid content is designed to keep its reader busy, and no other gateway can help. The fetch must end,
// and other fetches of the same fetcher must still succeed. It is not parallel, because it measures memory.
func TestDAGBomb(t *testing.T) {
	g := ipfstest.New()
	bomb := "ipfs://" + dagBomb(t, g).String()
	var others []string
	for i := range 100 {
		c := g.AddDirectory(map[string][]byte{"a/b.json": fmt.Appendf(nil, `{"n":%d}`, i)})
		others = append(others, "ipfs://"+c.String()+"/a/b.json")
	}
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
	_, took, allocated, err := measure(t, f, bomb, mib)
	if kind(err) != "large" || !strings.Contains(err.Error(), "more than 10000 links") {
		t.Errorf("%s (%v)", kind(err), err)
	}
	if took > mostTime {
		t.Errorf("it took %s", took)
	}
	if allocated > 128*mib {
		t.Errorf("%d MiB were allocated", allocated>>20)
	}
	t.Logf("%s, %d MiB allocated in sum", took, allocated>>20)

	var all sync.WaitGroup
	for i := range 4 { // different limits make different fetches
		all.Go(func() {
			wantKind(t, f, bomb, mib+1+int64(i), "large")
		})
	}
	for i, uri := range others {
		doc, err := f.Fetch(t.Context(), uri, mib)
		if err != nil || string(doc.Bytes) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("%s beside it: %q, %v", uri, doc.Bytes, err)
		}
	}
	all.Wait()
}

// TestTokensStay: secrets in a gateway URL are not sent to another host.
func TestTokensStay(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	dir := g.AddDirectory(map[string][]byte{"a.json": []byte("{}")})
	var mu sync.Mutex
	var seen []string
	gw := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, fmt.Sprint(r.URL, r.Header))
		mu.Unlock()
		g.Handler().ServeHTTP(w, r)
	}))
	for _, uri := range []string{
		"https://x.mypinata.invalid/ipfs/" + dir.String() + "/a.json?pinataGatewayToken=hunter2",
		"https://ipfs.invalid:5001/api/v0/cat?arg=" + dir.String() + "/a.json&key=hunter2",
		"https://" + dir.String() + ".ipfs.x.invalid/a.json?token=hunter2#hunter2",
		"https://u:hunter2@x.invalid/ipfs/" + dir.String() + "/a.json",
		"ipfs://" + dir.String() + "/a.json?token=hunter2",
	} {
		f := newFetcher(t, ipfs.Config{Gateways: []string{gw}})
		doc, err := f.Fetch(t.Context(), uri, mib)
		if err != nil || doc.Source != ipfs.SourceCID || strings.Contains(doc.URI+doc.From, "hunter2") {
			t.Errorf("%s: %+v, %v", uri, doc, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) == 0 || strings.Contains(strings.Join(seen, ""), "hunter2") {
		t.Errorf("the gateway was asked for %s", seen)
	}
}

// TestHashesThatDoNotBind: two contents may have the same SHA-1, MD5 or shortened hash. A CID or a link with such a
// hash proves nothing, and a gateway URL with one is treated as the URL of any web server.
func TestHashesThatDoNotBind(t *testing.T) {
	t.Parallel()
	content := []byte(`{"n":1}`)
	const sha1 = 0x11
	for name, prefix := range map[string]cid.Prefix{
		"SHA-1": {MhType: sha1, MhLength: -1}, "MD5": {MhType: 0xd5, MhLength: -1}, "murmur3": {MhType: 0x22, MhLength: -1},
		"SHA-256 of 19 bytes": {MhType: multihash.SHA2_256, MhLength: 19},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix.Version, prefix.Codec = 1, cid.Raw
			g := ipfstest.New()
			leaf := ipfstest.New().AddBlock(content, cid.Raw, multihash.SHA2_256)
			if c, err := prefix.Sum(content); err == nil {
				leaf = c
			} else { // this build lacks the hash function: use any digest of a valid length
				leaf = cid.NewCidV1(cid.Raw, must[multihash.Multihash](t)(multihash.Encode(leaf.Hash()[2:18], prefix.MhType)))
			}
			if prefix.MhType == sha1 { // the only one of these that boxo's store accepts
				g.AddBlock(content, cid.Raw, sha1)
			}
			fs := unixfs.NewFSNode(unixfs.TFile)
			fs.AddBlockSize(uint64(len(content)))
			file := merkledag.NodeWithData(must[[]byte](t)(fs.GetBytes()))
			heraldtest.Must(t, file.AddRawLink("", &format.Link{Size: uint64(len(content)), Cid: leaf}))
			root := g.AddBlock(file.RawData(), cid.DagProtobuf, multihash.SHA2_256)
			dir := unixfs.EmptyDirNode()
			heraldtest.Must(t, dir.AddRawLink("f.json", &format.Link{Size: uint64(len(content)), Cid: leaf}))
			folder := g.AddBlock(dir.RawData(), cid.DagProtobuf, multihash.SHA2_256)
			k := newKey(t, crypto.Ed25519)
			g.AddRecord(k.name.String(), k.record(t, "/ipfs/"+leaf.String(), 1, time.Hour, time.Minute))

			f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
			for _, uri := range []string{"ipfs://" + leaf.String(), "ipfs://" + root.String(), "ipfs://" + folder.String() + "/f.json",
				"ipns://" + k.name.String()} {
				if doc, err := f.Fetch(t.Context(), uri, mib); err == nil {
					t.Errorf("%s: taken as %s", uri, doc.Source)
				} else if kind(err) != "invalid" {
					t.Errorf("%s: %v", uri, err)
				}
			}
		})
	}
}

// TestGatewayIsNoOrigin: anyone can store content at a gateway. So the gateway's origin does not answer for the content
// that it serves, even if the URL is spelt in a way in which it is not recognized as that of a CID.
func TestGatewayIsNoOrigin(t *testing.T) {
	t.Parallel()
	const sha1 = 0x11
	refused := must[cid.Cid](t)(cid.Prefix{Version: 1, Codec: cid.Raw, MhType: sha1, MhLength: -1}.Sum([]byte("{}"))).String()
	stored := ipfstest.New().AddFile([]byte("{}")).String()
	web := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			http.Redirect(w, r, "/ipfs/"+refused, http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	f := newFetcher(t, ipfs.Config{})
	for path, want := range map[string]string{
		"/ipfs/" + refused: "", "/%69pfs/" + stored: "", "/ipfs/" + stored + "/./agent.json": "", "/x/..//IPFS/" + stored + "/.": "",
		"/ipns/a/../b": "", "/api/v0/cat?arg=" + refused: "", "/short": "",
		"/ipfs/" + stored + "/../../agent.json": "", "/ipfs/" + stored + "/%2e%2E/%2e./agent.json": "", "/ipfs%2F" + stored + "%2F..%2F../agent.json": "",
		"/agent.json": web, "/x/ipfs/agent.json": web, "/ipfs.json": web, "/api/v0/agent": web,
	} {
		doc, err := f.Fetch(t.Context(), web+path, mib)
		if err != nil || string(doc.Origin) != want {
			t.Errorf("%s: its origin is %q, want %q; source %s, %v", path, doc.Origin, want, doc.Source, err)
		}
	}
}
