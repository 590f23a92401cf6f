package ipfs_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/go-cid"
	"github.com/ipld/go-car/v2"
	"github.com/ipld/go-car/v2/storage"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// hostile is one way in which a gateway misbehaves.
type hostile struct {
	name string
	// serve answers a request for a block or a CAR. right is the honest answer.
	serve func(w http.ResponseWriter, r *http.Request, right []byte)
	// file and nested are the expected kinds of error with this gateway alone, for a single-block file and for a file
	// in a directory.
	file, nested string
	says         string // part of both errors
	slow         bool   // the fetch ends only by its timeout
	most         int64  // MiB that one fetch may allocate, including the gateway's own allocations
}

const (
	mismatch = "it sent bytes that do not match the CID"
	overlong = "it sent a block of more than 2097152 bytes"
)

func isCAR(r *http.Request) bool { return r.URL.Query().Get("format") == "car" }

// instead returns a handler that answers every request with b.
func instead(b []byte) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = w.Write(b) }
}

// endless writes b repeatedly until the client disconnects.
func endless(w io.Writer, b []byte) {
	for {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// drip writes one byte every 200 ms until the client disconnects.
func drip(w http.ResponseWriter, r *http.Request, b []byte) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
		if _, err := w.Write(b[i%len(b) : i%len(b)+1]); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
}

// raw writes the answer to the connection itself.
func raw(w http.ResponseWriter, do func(io.Writer)) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	do(conn)
	_ = conn.Close() // the client reports the error
}

// carOf returns a CARv1 of raw blocks whose root is not among them.
func carOf(t testing.TB, root cid.Cid, contents ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := must[storage.WritableCar](t)(storage.NewWritable(&out, []cid.Cid{root}, car.WriteAsCarV1(true)))
	for _, b := range contents {
		c := must[cid.Cid](t)(cid.Prefix{Version: 1, Codec: cid.Raw, MhType: multihash.SHA2_256, MhLength: -1}.Sum(b))
		heraldtest.Must(t, w.Put(t.Context(), c.KeyString(), b))
	}
	return out.Bytes()
}

// hostilities returns all of them. inner is an address that the fetcher must not connect to.
func hostilities(t testing.TB, inner string) []hostile {
	other := noise(3000)
	root := ipfstest.New().AddFile(other)
	otherCAR, emptyCAR := carOf(t, root, other), carOf(t, root)
	var many [][]byte
	for i := range 48 {
		many = append(many, noise(64<<10 + i)[i:])
	}
	manyCAR := carOf(t, root, many...)
	blocks := manyCAR[len(emptyCAR):]                                                      // without the header
	junk, bomb := make([]byte, 64<<10), bytes.Repeat(ipfs.Zip(t, make([]byte, 2*mib)), 32) // 64 MiB in 64 KiB
	page := []byte("<!doctype html><title>Gateway</title><p>Please use a browser.")

	return []hostile{
		{name: "flipped byte", file: "unavailable", nested: "unavailable", says: mismatch, most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, right []byte) {
				right[len(right)/2] ^= 1
				_, _ = w.Write(right)
			}},
		{name: "another CID's valid block", file: "unavailable", nested: "unavailable", says: mismatch, most: 1,
			serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				if isCAR(r) {
					_, _ = w.Write(otherCAR)
				} else {
					_, _ = w.Write(other)
				}
			}},
		{name: "half a body", file: "unavailable", nested: "unavailable", says: "in the middle of its answer", most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, right []byte) {
				w.Header().Set("Content-Length", fmt.Sprint(len(right)))
				_, _ = w.Write(right[:len(right)/2])
			}},
		{name: "half a body that ends cleanly", file: "unavailable", nested: "unavailable", says: mismatch, most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, right []byte) { _, _ = w.Write(right[:len(right)/2]) }},
		{name: "no body", file: "unavailable", nested: "unavailable", says: mismatch, most: 1, serve: instead(nil)},
		{name: "HTML with 200", file: "unavailable", nested: "unavailable", says: mismatch, most: 1, serve: instead(page)},
		{name: "endless body", file: "unavailable", nested: "unavailable", says: overlong, most: 20,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) { endless(w, junk) }},
		{name: "endless CAR of valid blocks", file: "unavailable", nested: "unavailable", says: overlong, most: 20,
			serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				if isCAR(r) {
					_, _ = w.Write(manyCAR)
					endless(w, blocks)
				}
				endless(w, junk)
			}},
		{name: "announced as huge", file: "unavailable", nested: "unavailable", says: "it announced a block of", most: 2,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.Header().Set("Content-Length", fmt.Sprint(int64(1)<<40))
				endless(w, junk)
			}},
		{name: "right answer, then endless junk", file: "unavailable", nested: "ok", says: overlong, most: 20,
			serve: func(w http.ResponseWriter, _ *http.Request, right []byte) {
				_, _ = w.Write(right)
				endless(w, bytes.Repeat([]byte{0xff}, 64<<10))
			}},
		{name: "status 500 with endless body", file: "unavailable", nested: "unavailable", says: "it answered 500", most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.WriteHeader(http.StatusInternalServerError)
				endless(w, junk)
			}},
		{name: "404 with endless body", file: "not found", nested: "not found", says: "was not found on any of", most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.WriteHeader(http.StatusNotFound)
				endless(w, junk)
			}},
		{name: "429 with Retry-After", file: "unavailable", nested: "unavailable", says: "it ", most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.Header().Set("Retry-After", "17")
				w.WriteHeader(http.StatusTooManyRequests)
			}},
		{name: "one byte each 200 ms", file: "unavailable", nested: "unavailable", says: "did not answer within", slow: true, most: 1, serve: drip},
		{name: "headers one byte each 200 ms", file: "unavailable", nested: "unavailable", says: "", slow: true, most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				raw(w, func(c io.Writer) {
					tick := time.NewTicker(200 * time.Millisecond)
					defer tick.Stop()
					for _, b := range []byte("HTTP/1.1 200 OK\r\nX-Slow: y" + strings.Repeat("e", 200) + "s") {
						<-tick.C
						if _, err := c.Write([]byte{b}); err != nil {
							return
						}
					}
				})
			}},
		{name: "silence", file: "unavailable", nested: "unavailable", says: "", slow: true, most: 1,
			serve: func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() }},
		{name: "gzip bomb that nobody asked for", file: "unavailable", nested: "unavailable", says: mismatch, most: 1,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(bomb)
			}},
		{name: "1 MiB of headers", file: "unavailable", nested: "unavailable", says: "header", most: 6,
			serve: func(w http.ResponseWriter, _ *http.Request, right []byte) {
				w.Header().Set("X-Junk", strings.Repeat("x", mib))
				_, _ = w.Write(right)
			}},
		{name: "endless headers", file: "unavailable", nested: "unavailable", says: "header", most: 2,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				raw(w, func(c io.Writer) {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
					endless(c, bytes.Repeat([]byte("X-Junk: yes\r\n"), 1000))
				})
			}},
		{name: "endless interim answers", file: "unavailable", nested: "unavailable", says: "", most: 2,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				raw(w, func(c io.Writer) { endless(c, []byte("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")) })
			}},
		{name: "no HTTP", file: "unavailable", nested: "unavailable", says: "is not valid HTTP", most: 2,
			serve: func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				raw(w, func(c io.Writer) { endless(c, []byte("220 ready\r\n")) })
			}},
		{name: "redirect to this machine", file: "unavailable", nested: "unavailable", says: "it answered 302", most: 1,
			serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				http.Redirect(w, r, "http://"+inner+r.URL.String(), http.StatusFound)
			}},
		{name: "redirect to the metadata service", file: "unavailable", nested: "unavailable", says: "it answered 307", most: 1,
			serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
			}},
		{name: "empty CAR with 200", file: "not found", nested: "not found", says: "was not found on any of", most: 1,
			serve: func(w http.ResponseWriter, r *http.Request, _ []byte) {
				if isCAR(r) {
					_, _ = w.Write(emptyCAR)
				} else {
					http.Error(w, "block not found", http.StatusNotFound)
				}
			}},
	}
}
