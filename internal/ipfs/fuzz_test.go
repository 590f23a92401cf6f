package ipfs_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	format "github.com/ipfs/go-ipld-format"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// impatient returns a fetcher of one gateway that keeps nothing from one fetch to the next, because its clock advances
// by an hour with each call.
func impatient(f *testing.F, h http.HandlerFunc) *ipfs.Fetcher {
	var hours atomic.Int64
	return newFetcher(f, ipfs.Config{Gateways: []string{serve(f, h)}, CacheBytes: -1, Timeout: 10 * time.Second, Now: func() time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(hours.Add(1)) * time.Hour)
	}})
}

// answerOf returns an honest gateway's answer.
func answerOf(g *ipfstest.Gateway, uri, format string) []byte {
	w := httptest.NewRecorder()
	path := strings.Replace(uri, "ipfs://", "/ipfs/", 1)
	g.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path+"?format="+format, nil))
	return w.Body.Bytes()
}

// FuzzCAR gives a fetcher any bytes as a CAR and any bytes as a raw block. Each fetch returns the content that the CID
// names, or an error. The error must not be a verdict on the content, because a gateway's claims about it are
// unverified.
func FuzzCAR(f *testing.F) {
	g := ipfstest.New()
	small, large := []byte(`{"name":"agent"}`), noise(600<<10)
	id := must[cid.Cid](f)
	dir := g.AddDirectory(map[string][]byte{"a/b.json": small, "large": large}).String()
	sharded := g.AddShardedDirectory(map[string][]byte{"a/b.json": small}).String()
	uris := []string{"ipfs://" + dir + "/a/b.json", "ipfs://" + sharded + "/a/b.json", "ipfs://" + dir + "/large", "ipfs://" + g.AddFile(small).String()}
	want := map[string][]byte{uris[0]: small, uris[1]: small, uris[2]: large, uris[3]: small}
	for i, uri := range uris {
		whole := answerOf(g, uri, "car")
		f.Add(uint8(i), whole, []byte{})
		f.Add(uint8(i), []byte{}, answerOf(g, strings.SplitN(uri, "/a/", 2)[0], "raw"))
		f.Add(uint8(i|4), whole[:len(whole)/2], []byte{})
	}
	root := id(cid.Decode(dir))
	f.Add(uint8(0), carOf(f, root), []byte{})
	f.Add(uint8(0), carOf(f, root, small, []byte{}), []byte{})
	// This is a CARv2's pragma and header with offsets that lie outside the file.
	f.Add(uint8(0), append([]byte("\x0a\xa1gversion\x02"), bytes.Repeat([]byte{0xff}, 40)...), []byte{})

	type answers struct {
		car, block []byte
		honest     bool // the raw blocks are correct
	}
	var now atomic.Pointer[answers]
	fetcher := impatient(f, func(w http.ResponseWriter, r *http.Request) {
		a := now.Load()
		switch {
		case isCAR(r):
			_, _ = w.Write(a.car)
		case a.honest:
			g.Handler().ServeHTTP(w, r)
		default:
			_, _ = w.Write(a.block)
		}
	})
	f.Fuzz(func(t *testing.T, which uint8, car, block []byte) {
		now.Store(&answers{car: car, block: block, honest: which&4 != 0})
		uri := uris[which%4]
		doc, err := fetcher.Fetch(t.Context(), uri, mib)
		switch kind(err) {
		case "ok":
			if !bytes.Equal(doc.Bytes, want[uri]) || doc.Source != ipfs.SourceCID {
				t.Errorf("%s: %d wrong bytes", uri, len(doc.Bytes))
			}
		case "unavailable", "not found":
			if which&4 != 0 {
				t.Errorf("%s: the gateway had every block: %v", uri, err)
			}
		default:
			t.Errorf("%s: %v", uri, err)
		}
	})
}

// FuzzBlocks lets a stranger make the content itself: blocks that match their CIDs, with any bytes. Each fetch returns
// a document within the limit, or an error type of the package.
func FuzzBlocks(f *testing.F) {
	g := ipfstest.New()
	id := must[cid.Cid](f)
	codecs := []uint64{cid.DagProtobuf, cid.Raw, 0x0129, cid.DagCBOR}
	leaf := []byte("leaf")
	child := id(cid.Prefix{Version: 1, Codec: cid.Raw, MhType: multihash.SHA2_256, MhLength: -1}.Sum(leaf))
	inline := id(cid.Prefix{Version: 1, Codec: cid.Raw, MhType: multihash.IDENTITY, MhLength: -1}.Sum([]byte("inline")))

	// The seeds are directories, sharded directories and files of several blocks. One of their children is served, the
	// bytes of the other are in its CID.
	for _, c := range []cid.Cid{child, inline} {
		for _, kind := range []*unixfs.FSNode{unixfs.NewFSNode(unixfs.TDirectory), unixfs.NewFSNode(unixfs.TFile)} {
			if kind.Type() == unixfs.TFile {
				kind.AddBlockSize(4)
				kind.AddBlockSize(1 << 40)
			}
			node := merkledag.NodeWithData(must[[]byte](f)(kind.GetBytes()))
			for _, name := range []string{"a", ""} {
				heraldtest.Must(f, node.AddRawLink(name, &format.Link{Size: 4, Cid: c}))
			}
			f.Add(uint8(0), node.RawData(), leaf, "a")
		}
	}
	sharded := g.AddShardedDirectory(map[string][]byte{"a": []byte("x"), "b": []byte("y")})
	f.Add(uint8(0), answerOf(g, "ipfs://"+sharded.String(), "raw"), leaf, "a")
	f.Add(uint8(0), must[[]byte](f)(unixfs.SymlinkData("/etc/passwd")), leaf, "")
	f.Add(uint8(1), []byte("{}"), leaf, "")
	f.Add(uint8(2), []byte(`{"a":{"/":"bafkqaaa"}}`), leaf, "a/b")
	f.Add(uint8(3), []byte("\xa1aa\x01"), leaf, "%61")
	// These take more memory than their bytes when decoded: links, part sizes, and a CBOR child.
	f.Add(uint8(0), linkBomb(200), leaf, "")
	f.Add(uint8(0), sizeBomb(200, true), leaf, "")
	f.Add(uint8(0), sizeBomb(200, false), leaf, "a")
	cbor := id(cid.Prefix{Version: 1, Codec: cid.DagCBOR, MhType: multihash.SHA2_256, MhLength: -1}.Sum(cborBomb(200)))
	f.Add(uint8(0), parentOf(cbor, false), cborBomb(200), "")
	f.Add(uint8(0), parentOf(cbor, true), cborBomb(200), "a")

	var now atomic.Pointer[map[string][]byte]
	fetcher := impatient(f, func(w http.ResponseWriter, r *http.Request) {
		b, ok := (*now.Load())[strings.TrimPrefix(r.URL.Path, "/ipfs/")]
		if !ok || isCAR(r) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(b)
	})
	f.Fuzz(func(t *testing.T, codec uint8, block, below []byte, path string) {
		served := map[string][]byte{}
		add := func(b []byte, codec uint64) cid.Cid {
			c, err := cid.Prefix{Version: 1, Codec: codec, MhType: multihash.SHA2_256, MhLength: -1}.Sum(b)
			heraldtest.Must(t, err)
			served[c.String()] = b
			return c
		}
		add(leaf, cid.Raw)
		for _, codec := range codecs {
			add(below, codec)
		}
		root := add(block, codecs[codec%4])
		now.Store(&served)
		uri := "ipfs://" + root.String()
		if path != "" {
			uri += "/" + path
		}
		const limit = 1 << 20
		doc, err := fetcher.Fetch(t.Context(), uri, limit)
		switch kind(err) {
		case "ok":
			if len(doc.Bytes) > limit || doc.Source != ipfs.SourceCID {
				t.Errorf("%d bytes, source %s", len(doc.Bytes), doc.Source)
			}
		case "none", "not found", "proven absent", "invalid", "large", "unavailable":
		default:
			t.Errorf("%q: %v", uri, err)
		}
	})
}
