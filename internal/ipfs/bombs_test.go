package ipfs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ipfs/boxo/ipld/unixfs"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// emptyLink is a dag-pb link of eight bytes to an empty raw block. Its CID contains the block, so nothing is fetched.
var emptyLink = []byte{0x12, 6, 0x0a, 4, 1, 0x55, 0, 0}

// pbField encodes a length-delimited field of a protobuf message.
func pbField(number byte, value []byte) []byte {
	return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(value))), value...)
}

// linkBomb returns the dag-pb block of a file with n links.
func linkBomb(n int) []byte {
	return append(bytes.Repeat(emptyLink, n), pbField(1, []byte{8, 2, 0x18, 0})...)
}

// sizeBomb returns the block of a file that lists n part sizes, as single fields or as one packed field.
func sizeBomb(n int, packed bool) []byte {
	sizes := bytes.Repeat([]byte{0x20, 1}, n)
	if packed {
		sizes = pbField(4, bytes.Repeat([]byte{1}, n))
	}
	return pbField(1, append([]byte{8, 2, 0x18, 0}, sizes...))
}

// cborBomb returns a dag-cbor list of n zeros.
func cborBomb(n int) []byte {
	return append([]byte{0x9a, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, make([]byte, n)...)
}

// parentOf returns the block of a file whose only part is c, or of a directory whose entry "a" is c.
func parentOf(c cid.Cid, directory bool) []byte {
	link := pbField(1, c.Bytes())
	data := []byte{8, 2, 0x18, 4, 0x20, 4}
	if directory {
		link, data = append(link, pbField(2, []byte("a"))...), unixfs.FolderPBData()
	}
	return append(pbField(2, link), pbField(1, data)...)
}

// TestDecodedSizeIsBounded fetches blocks with correct hashes that would take a hundred times their size when decoded.
// It is not parallel, because it measures the allocations of the whole process.
func TestDecodedSizeIsBounded(t *testing.T) {
	const full = 2<<20 - 64
	g := ipfstest.New()
	id := must[cid.Cid](t)
	add := func(block []byte, codec uint64) cid.Cid { return g.AddBlock(block, codec, multihash.SHA2_256) }
	inline := id(cid.Prefix{Version: 1, Codec: cid.DagCBOR, MhType: multihash.IDENTITY, MhLength: -1}.Sum(cborBomb(100)))
	cbor := add(cborBomb(full), cid.DagCBOR)
	links := add(linkBomb(full/8), cid.DagProtobuf)
	var spread []byte // eleven blocks of 1,000 links
	for i := range 11 {
		child := add(append(bytes.Repeat(emptyLink, 1000), pbField(1, []byte{8, 2, 0x18, byte(i)})...), cid.DagProtobuf)
		spread = append(spread, pbField(2, pbField(1, child.Bytes()))...)
	}
	repeated := add(linkBomb(1000), cid.DagProtobuf)
	for range 3 { // a thousand million links to an empty part
		repeated = add(append(bytes.Repeat(pbField(2, pbField(1, repeated.Bytes())), 1000), pbField(1, []byte{8, 2, 0x18, 0})...), cid.DagProtobuf)
	}
	base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isCAR(r) {
			w.WriteHeader(http.StatusNotFound) // to make a CAR, the gateway would have to decode the blocks itself
			return
		}
		g.Handler().ServeHTTP(w, r)
	}))
	for name, c := range map[string]struct{ uri, want string }{
		"a dag-cbor root":                {"ipfs://" + cbor.String(), "none"},
		"a dag-cbor child":               {"ipfs://" + add(parentOf(cbor, false), cid.DagProtobuf).String(), "invalid"},
		"a dag-cbor entry":               {"ipfs://" + add(parentOf(cbor, true), cid.DagProtobuf).String() + "/a", "invalid"},
		"a dag-cbor child in its CID":    {"ipfs://" + add(parentOf(inline, false), cid.DagProtobuf).String(), "invalid"},
		"a dag-json child":               {"ipfs://" + add(parentOf(add(bytes.Repeat([]byte("["), full), 0x129), false), cid.DagProtobuf).String(), "invalid"},
		"262,000 links":                  {"ipfs://" + links.String(), "large"},
		"262,000 links below":            {"ipfs://" + add(parentOf(links, false), cid.DagProtobuf).String(), "large"},
		"262,000 links as an entry":      {"ipfs://" + add(parentOf(links, true), cid.DagProtobuf).String() + "/a", "large"},
		"262,000 links, then a segment":  {"ipfs://" + links.String() + "/a", "large"},
		"a million sizes":                {"ipfs://" + add(sizeBomb(full/2-8, false), cid.DagProtobuf).String(), "large"},
		"two million packed sizes":       {"ipfs://" + add(sizeBomb(full-8, true), cid.DagProtobuf).String(), "large"},
		"10,000 links in small blocks":   {"ipfs://" + add(append(spread, pbField(1, []byte{8, 2, 0x18, 0})...), cid.DagProtobuf).String(), "large"},
		"the same links again and again": {"ipfs://" + repeated.String(), "large"},
		"links that are allowed":         {"ipfs://" + add(linkBomb(9990), cid.DagProtobuf).String(), "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFetcher(t, ipfs.Config{Gateways: []string{base}, CacheBytes: -1})
			_, _, allocated, err := measure(t, f, c.uri, 2*mib)
			if kind(err) != c.want {
				t.Errorf("%s (%v), want %s", kind(err), err, c.want)
			}
			// The client fetches the block twice, in a CAR and raw, and growing buffers allocate several times each.
			// The allocations of the test's own server are included.
			if allocated > 48*mib {
				t.Errorf("%d MiB were allocated for blocks of 2 MiB", allocated>>20)
			}
			t.Logf("%d KiB: %v", allocated>>10, err)
		})
	}
}

// TestBlocksOfOneFileAreFew: the first blocks of a file are larger than the largest document, so the other ones are not
// fetched. All of them could be in memory at a time.
func TestBlocksOfOneFileAreFew(t *testing.T) {
	t.Parallel()
	const limit = 2 * mib
	g := ipfstest.New()
	for name, add := range map[string]func(salt byte) cid.Cid{
		"raw": func(salt byte) cid.Cid {
			return g.AddBlock(append(make([]byte, 2*mib-1), salt), cid.Raw, multihash.SHA2_256)
		},
		"dag-pb": func(salt byte) cid.Cid {
			content := append(make([]byte, 2*mib-32), salt)
			return g.AddBlock(pbField(1, append([]byte{8, 2}, pbField(2, content)...)), cid.DagProtobuf, multihash.SHA2_256)
		},
	} {
		var root []byte
		for i := range 10 {
			root = append(root, pbField(2, pbField(1, add(byte(i+1)).Bytes()))...)
		}
		uri := "ipfs://" + g.AddBlock(append(root, pbField(1, []byte{8, 2, 0x18, 4})...), cid.DagProtobuf, multihash.SHA2_256).String()
		srv := httptest.NewUnstartedServer(g.Handler())
		sent := &counted{Listener: srv.Listener}
		srv.Listener = sent
		srv.Start()
		t.Cleanup(srv.Close)
		wantKind(t, newFetcher(t, ipfs.Config{Gateways: []string{srv.URL}}), uri, limit, "large")
		// The second block exceeds the limit. While it is checked, the third one is under way.
		if n := sent.bytes.Load(); n > 3*2*mib+64<<10 {
			t.Errorf("%s: %d KiB were sent for a document of at most 2 MiB", name, n>>10)
		}
	}
}

// TestLargestFileInLargeDirectory: a file of exactly the limit is fetched although its directory is large too.
func TestLargestFileInLargeDirectory(t *testing.T) {
	t.Parallel()
	const limit = 2 * mib
	g := ipfstest.New()
	file := g.AddFile(noise(limit))
	entry := func(name string) []byte {
		return pbField(2, append(pbField(1, file.Bytes()), pbField(2, []byte(name))...))
	}
	var links []byte
	for i := range 9000 {
		links = append(links, entry(fmt.Sprintf("%0150d", i))...)
	}
	dir := g.AddBlock(append(links, pbField(1, unixfs.FolderPBData())...), cid.DagProtobuf, multihash.SHA2_256)
	f := newFetcher(t, ipfs.Config{Gateways: []string{serve(t, g.Handler())}})
	doc, err := f.Fetch(t.Context(), fmt.Sprintf("ipfs://%s/%0150d", dir, 8999), limit)
	if err != nil || len(doc.Bytes) != limit {
		t.Errorf("%d bytes, %v", len(doc.Bytes), err)
	}
}
