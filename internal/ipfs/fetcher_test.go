package ipfs_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most of these tests wait for gateways; the command line overrides it
	heraldtest.Main(m)
}

const mib = 1 << 20

func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func newFetcher(t testing.TB, cfg ipfs.Config) *ipfs.Fetcher {
	t.Helper()
	if cfg.Guard == nil {
		g, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
		heraldtest.Must(t, err)
		cfg.Guard = g
	}
	// Tests that are not about waiting get enough time on a busy machine too.
	cfg.Timeout, cfg.TryTimeout = cmp.Or(cfg.Timeout, time.Minute), cmp.Or(cfg.TryTimeout, 30*time.Second)
	if cfg.Hedge == 0 {
		cfg.Hedge = 20 * time.Millisecond
	}
	f, err := ipfs.New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(f.Close)
	return f
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		heraldtest.Must(t, err)
		return v
	}
}

// noise returns content that neither compression nor deduplication can shrink.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}

// samples returns documents of every structure, by URI.
func samples(t testing.TB, g *ipfstest.Gateway) map[string][]byte {
	t.Helper()
	small, large := []byte(`{"name":"agent"}`), noise(3*mib)
	many := map[string][]byte{}
	for i := range 600 {
		many[fmt.Sprintf("file-%d.json", i)] = fmt.Appendf(nil, `{"n":%d}`, i)
	}
	tree := map[string][]byte{"a b/ünï/agent.json": small, "a b/large.bin": large, "100%25.json": small, "empty": {}, "plain/100%.json": small}
	dir := g.AddDirectory(tree).String()
	sharded := g.AddShardedDirectory(many).String()
	inline, err := cid.Prefix{Version: 1, Codec: cid.Raw, MhType: multihash.IDENTITY, MhLength: -1}.Sum(bytes.Repeat([]byte("x"), 300))
	heraldtest.Must(t, err)
	return map[string][]byte{
		"ipfs://" + g.AddFile(small).String():                                          small,
		"ipfs://" + g.AddFileV0(small).String():                                        small,
		g.AddFile(large).String():                                                      large,
		"ipfs://" + g.AddFileV0(large).String():                                        large,
		"ipfs://" + dir + "/a%20b/%C3%BCn%C3%AF/agent.json":                            small,
		"ipfs://" + dir + "/a b/ünï/agent.json":                                        small,
		"https://gateway.invalid/ipfs/" + dir + "/a%20b/large.bin?token=x":             large,
		"ipfs://" + dir + "/100%25.json":                                               small, // the file is named 100%25.json
		"ipfs://" + dir + "/plain/100%25.json":                                         small, // the file is named 100%.json
		"ipfs://" + dir + "/empty":                                                     {},
		"ipfs://" + sharded + "/file-599.json":                                         many["file-599.json"],
		"ipfs://" + inline.String():                                                    bytes.Repeat([]byte("x"), 300),
		"ipfs://" + g.AddBlock([]byte(`{"d":1}`), 0x0129, multihash.SHA2_256).String(): []byte(`{"d":1}`),
		"ipfs://" + g.AddBlock(small, cid.Raw, multihash.BLAKE3).String():              small,
		"ipfs://" + g.AddBlock([]byte("k"), cid.Raw, multihash.KECCAK_256).String():    []byte("k"),
		"ipfs://bafkqaaa":                                                              {},
	}
}

func TestFetchVerified(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]ipfstest.Behaviour{
		"raw and CAR":              {},
		"raw only":                 {NoCAR: true},
		"empty CARs":               {EmptyCAR: true},
		"dag-scope not understood": {WholeTree: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := ipfstest.New()
			docs := samples(t, g)
			g.Behave(b)
			f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
			for uri, want := range docs {
				doc, err := f.Fetch(t.Context(), uri, 4*mib)
				if err != nil {
					t.Errorf("%s: %v", uri, err)
					continue
				}
				if !bytes.Equal(doc.Bytes, want) || doc.Source != "cid" || doc.CID == "" {
					t.Errorf("%s: %d bytes, source %s, CID %q", uri, len(doc.Bytes), doc.Source, doc.CID)
				}
			}
		})
	}
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	docs := map[string][]byte{"a/b/c.json": noise(600 << 10)}
	dir := g.AddShardedDirectory(docs)
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
	_, err := f.Fetch(t.Context(), "ipfs://"+dir.String()+"/a/b/c.json", mib)
	heraldtest.Must(t, err)
	if raw, cars := g.Requests(); raw != 0 || cars != 1 {
		t.Errorf("%d raw and %d CAR requests, want one CAR", raw, cars)
	}
	// The second fetch is answered from the cache.
	doc, err := f.Fetch(t.Context(), "/ipfs/"+dir.String()+"/a/b/c.json", mib)
	if err != nil || !bytes.Equal(doc.Bytes, docs["a/b/c.json"]) {
		t.Fatal(err)
	}
	if raw, cars := g.Requests(); raw != 0 || cars != 1 {
		t.Errorf("%d raw and %d CAR requests after a cached fetch", raw, cars)
	}
	if _, err := f.Fetch(t.Context(), "ipfs://"+dir.String()+"/a/b/c.json", 1000); !errors.As(err, new(*ipfs.TooLargeError)) {
		t.Errorf("the cache forgot the limit: %v", err)
	}
}

// kind returns a short name of an error, for tables.
func kind(err error) string {
	var (
		none        *ipfs.NoDocumentError
		notFound    *ipfs.NotFoundError
		unavailable *ipfs.UnavailableError
		gateway     *ipfs.NoGatewayError
		large       *ipfs.TooLargeError
		invalid     *ipfs.InvalidError
		blocked     *netguard.BlockedError
		refused     *netguard.RefusedURLError
	)
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &none):
		return "none"
	case errors.As(err, &notFound) && notFound.Proven:
		return "proven absent"
	case errors.As(err, &notFound):
		return "not found"
	case errors.As(err, &unavailable):
		return "unavailable"
	case errors.As(err, &gateway):
		return "no gateway"
	case errors.As(err, &large):
		return "large"
	case errors.As(err, &invalid):
		return "invalid"
	case errors.As(err, &blocked):
		return "blocked"
	case errors.As(err, &refused):
		return "refused"
	}
	return err.Error()
}

// wantKind fetches a document and checks the kind of the error.
func wantKind(t *testing.T, f *ipfs.Fetcher, uri string, limit int64, want string) {
	t.Helper()
	if _, err := f.Fetch(t.Context(), uri, limit); kind(err) != want {
		t.Errorf("%s: %s (%v), want %s", uri, kind(err), err, want)
	}
}

func TestNotFoundNeedsEveryGateway(t *testing.T) {
	t.Parallel()
	a, b := ipfstest.New(), ipfstest.New()
	c := ipfstest.New().AddFile([]byte("elsewhere"))
	b.Behave(ipfstest.Behaviour{Status: 502})
	ua, ub := serve(t, a.Handler()), serve(t, b.Handler())
	f := newFetcher(t, ipfs.Config{Gateways: []string{ua, ub}})
	wantKind(t, f, "ipfs://"+c.String(), mib, "unavailable")
	b.Behave(ipfstest.Behaviour{})
	f = newFetcher(t, ipfs.Config{Gateways: []string{ua, ub}}) // the other fetcher remembers its failure for a moment
	wantKind(t, f, "ipfs://"+c.String(), mib, "not found")
	none := newFetcher(t, ipfs.Config{})
	if _, err := none.Fetch(t.Context(), "ipfs://"+c.String(), mib); kind(err) != "unavailable" || !strings.Contains(err.Error(), "IPFS_GATEWAYS") {
		t.Errorf("no gateway: %v", err)
	}
	if doc, err := none.Fetch(t.Context(), "ipfs://bafkqaaa", mib); err != nil || len(doc.Bytes) != 0 {
		t.Errorf("an identity CID needs no gateway: %v", err)
	}
}

func TestNoFile(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	dir := g.AddDirectory(map[string][]byte{"a/b": []byte("x")}).String()
	sharded := g.AddShardedDirectory(map[string][]byte{"a/b": []byte("x")}).String()
	file := g.AddFile([]byte("x")).String()
	big := g.AddFile(noise(mib + 1))
	link := must[[]byte](t)(unixfs.SymlinkData("/etc/passwd"))
	node := merkledag.NodeWithData(link)
	symlink := g.AddBlock(node.RawData(), cid.DagProtobuf, multihash.SHA2_256).String()
	missing := g.AddFile(noise(900 << 10))
	leaf := g.AddFile(noise(900 << 10)[:256<<10])
	g.Remove(leaf)
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
	for uri, want := range map[string]string{
		"ipfs://" + dir:              "none",
		"ipfs://" + sharded:          "none",
		"ipfs://" + dir + "/a":       "none",
		"ipfs://" + symlink:          "none",
		"ipfs://" + dir + "/x":       "proven absent",
		"ipfs://" + sharded + "/x":   "proven absent",
		"ipfs://" + dir + "/a/b/c":   "proven absent",
		"ipfs://" + file + "/x":      "proven absent",
		"ipfs://" + big.String():     "large",
		"ipfs://" + missing.String(): "not found", // a block in the middle is missing
		"ipfs://" + dir + "/../x":    "invalid",
		"ar://x":                     "no gateway",
		"ipfs://" + g.AddBlock([]byte("\xff\xff"), cid.DagProtobuf, multihash.SHA2_256).String():         "invalid",
		"ipfs://" + g.AddBlock([]byte("\xa1aa\x01"), cid.DagCBOR, multihash.SHA2_256).String():           "none",
		"ipfs://" + g.AddBlock([]byte("\x0a\x02\x08\x63"), cid.DagProtobuf, multihash.SHA2_256).String(): "invalid",
	} {
		wantKind(t, f, uri, mib, want)
	}
}

// TestWeb fetches from a web server. TestHostileWeb has servers that send too much, too little or nothing, and
// redirects to inner addresses.
func TestWeb(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	answer := func(path, encoding, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "identity" {
				http.Error(w, "compression asked for", http.StatusBadRequest)
				return
			}
			if encoding != "" {
				w.Header().Set("Content-Encoding", encoding)
			}
			_, _ = io.WriteString(w, body)
		})
	}
	redirect := func(path, to string) { mux.Handle(path, http.RedirectHandler(to, http.StatusFound)) }
	answer("/ok", "", "{}")
	answer("/gzip", "gzip", string(ipfs.Zip(t, []byte("{}"))))
	answer("/br", "br", "xx")
	mux.HandleFunc("/busy", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/announced", func(w http.ResponseWriter, _ *http.Request) { // and not sent
		w.Header().Set("Content-Length", "99999999")
		w.WriteHeader(http.StatusOK)
	})
	mux.HandleFunc("/forbidden", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	redirect("/moved", "/ok")
	redirect("/loop", "/loop")
	base, other := serve(t, mux), serve(t, mux)
	redirect("/abroad", other+"/ok")
	redirect("/back", base+"/ok")
	redirect("/there-and-back", other+"/back")
	f := newFetcher(t, ipfs.Config{})
	for path, want := range map[string]struct{ kind, origin string }{
		"/ok": {"ok", base}, "/gzip": {"ok", base}, "/moved": {"ok", base}, "/abroad": {"ok", ""}, "/there-and-back": {"ok", ""},
		"/br": {"unavailable", ""}, "/busy": {"unavailable", ""}, "/forbidden": {"unavailable", ""}, "/loop": {"unavailable", ""},
		"/missing": {"not found", ""}, "/announced": {"large", ""},
	} {
		doc, err := f.Fetch(t.Context(), base+path+"?token=secret", mib)
		if kind(err) != want.kind || string(doc.Origin) != want.origin {
			t.Errorf("%s: %s (%v) of the origin %q, want %s of %q", path, kind(err), err, doc.Origin, want.kind, want.origin)
		}
		if err == nil && (string(doc.Bytes) != "{}" || doc.Source != "http") {
			t.Errorf("%s: %q from %s", path, doc.Bytes, doc.Source)
		}
		var u *ipfs.UnavailableError
		if path == "/busy" && (!errors.As(err, &u) || u.RetryAfter != 30*time.Second) {
			t.Errorf("Retry-After: %v", err)
		}
		heraldtest.Lacks(t, path, fmt.Sprint(err), "secret")
	}
	g := newFetcher(t, ipfs.Config{Guard: must[*netguard.Guard](t)(netguard.New(netguard.Config{}))})
	for uri, want := range map[string]string{
		"https://127.0.0.1/x":            "blocked",
		"https://[::ffff:127.0.0.1]/x":   "blocked",
		"http://host.test/x":             "refused",
		"https://user:pw@host.test/x":    "refused",
		"https://169.254.169.254/latest": "blocked",
	} {
		wantKind(t, g, uri, mib, want)
	}
}

// TestGatewayAfterOutage: a gateway that answered 503 may be well again long before the time that it stated.
func TestGatewayAfterOutage(t *testing.T) {
	t.Parallel()
	g, down := ipfstest.New(), atomic.Bool{}
	file, handler := g.AddFile([]byte("{}")), g.Handler()
	gateway := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	now := heraldtest.NewClock(time.Now())
	f := newFetcher(t, ipfs.Config{Gateways: []string{gateway}, Now: now.Now})
	down.Store(true)
	_, err := f.Fetch(t.Context(), "ipfs://"+file.String(), mib)
	var u *ipfs.UnavailableError
	if !errors.As(err, &u) || u.RetryAfter != 30*time.Second {
		t.Errorf("the wait: %v", err)
	}
	down.Store(false)
	now.Advance(30 * time.Second)
	wantKind(t, f, "ipfs://"+file.String(), mib, "ok")
}

func TestGatewayURLAsLastResort(t *testing.T) {
	t.Parallel()
	elsewhere := ipfstest.New()
	c := elsewhere.AddFile([]byte(`{"a":1}`))
	plain := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) }))
	empty := ipfstest.New()
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, empty.Handler())}})
	doc, err := f.Fetch(t.Context(), plain+"/ipfs/"+c.String(), mib)
	if err != nil || doc.Source != "http" || doc.CID != "" || doc.Origin != "" {
		t.Fatalf("%+v, %v: want the plain answer, unverified, and not the gateway's own word", doc, err)
	}
	wantKind(t, f, "ipfs://"+c.String(), mib, "not found")
}

func TestArweave(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	gw := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path)
		_, _ = io.WriteString(w, "{}")
	}))
	f := newFetcher(t, ipfs.Config{Arweave: gw})
	doc, err := f.Fetch(t.Context(), "ar://Tx_-1/a%20b.json", mib)
	if err != nil || doc.Source != "ar" || doc.Origin != "" || doc.URI != "ar://Tx_-1/a%20b.json" || asked.Load() != "/Tx_-1/a b.json" {
		t.Errorf("%+v, %v, asked for %v", doc, err, asked.Load())
	}
}

// TestSharedFlight: many callers share one request. If one of them cancels, the others still get the document.
func TestSharedFlight(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	c := g.AddFile([]byte("{}"))
	hold := make(chan struct{})
	g.Behave(ipfstest.Behaviour{Hold: hold})
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
	first, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	gone := make(chan error, 1)
	all.Go(func() {
		_, err := f.Fetch(first, "ipfs://"+c.String(), mib)
		gone <- err
	})
	heraldtest.Await(t, "the gateway is asked", func() bool { raw, _ := g.Requests(); return raw == 1 })
	results := make(chan error, 8)
	for range cap(results) {
		all.Go(func() {
			_, err := f.Fetch(t.Context(), "ipfs://"+c.String(), mib)
			results <- err
		})
	}
	leave()
	heraldtest.Fails(t, "the first caller", <-gone, context.Canceled)
	close(hold)
	all.Wait()
	for range cap(results) {
		heraldtest.Must(t, <-results)
	}
	if raw, _ := g.Requests(); raw != 1 {
		t.Errorf("%d requests", raw)
	}
}

func TestCloseEndsFetches(t *testing.T) {
	t.Parallel()
	g := ipfstest.New()
	c := g.AddFile([]byte("{}"))
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	g.Behave(ipfstest.Behaviour{Hold: hold})
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}, TryTimeout: time.Minute, Timeout: time.Minute})
	done := make(chan error, 1)
	go func() {
		_, err := f.Fetch(context.Background(), "ipfs://"+c.String(), mib)
		done <- err
	}()
	heraldtest.Await(t, "the gateway is asked", func() bool { raw, _ := g.Requests(); return raw == 1 })
	f.Close()
	if err := <-done; kind(err) != "unavailable" {
		t.Errorf("a running fetch: %v", err)
	}
	wantKind(t, f, "ipfs://"+c.String(), mib, "unavailable")
}

func TestRefusedConfig(t *testing.T) {
	t.Parallel()
	guard := must[*netguard.Guard](t)(netguard.New(netguard.Config{}))
	for name, cfg := range map[string]ipfs.Config{
		"no guard": {},
		"no URL":   {Guard: guard, Gateways: []string{"ipfs.io"}},
		"scheme":   {Guard: guard, Gateways: []string{"ftp://ipfs.io"}},
		"password": {Guard: guard, Gateways: []string{"https://u:secret@ipfs.io"}},
		"token":    {Guard: guard, Gateways: []string{"https://ipfs.io?token=secret"}},
		"arweave":  {Guard: guard, Arweave: "arweave.net"},
	} {
		if _, err := ipfs.New(cfg); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g := ipfstest.New()
	c := g.AddFile([]byte("{}"))
	base := serve(t, http.StripPrefix("/gw", g.Handler()))
	for _, gw := range []string{base + "/gw", base + "/gw/", base + "/gw/ipfs/"} {
		f := newFetcher(t, ipfs.Config{Gateways: []string{gw}})
		if _, err := f.Fetch(t.Context(), c.String(), mib); err != nil {
			t.Errorf("%s: %v", gw, err)
		}
	}
}

// TestQueryWithSpace: the query of a web URL, and that of a redirect, is sent as fetch sends it. Servers refuse a request
// line with a space.
func TestQueryWithSpace(t *testing.T) {
	t.Parallel()
	base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			w.Header().Set("Location", "/a?file=my file.json&q=ü")
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, r.RequestURI)
	}))
	f := newFetcher(t, ipfs.Config{})
	for path, want := range map[string]string{
		"/a?file=my file.json": "/a?file=my%20file.json", "/a?q=ü": "/a?q=%C3%BC", "/a?q=%20+&r=%zz;{id}": "/a?q=%20+&r=%zz;{id}",
		"/moved": "/a?file=my%20file.json&q=%C3%BC",
	} {
		doc, err := f.Fetch(t.Context(), base+path, mib)
		if err != nil || string(doc.Bytes) != want {
			t.Errorf("%s: %s, %v", path, doc.Bytes, err)
		}
	}
}
