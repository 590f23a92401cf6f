package ipfs_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// BenchmarkContent compares fetching verified content with a plain GET of the same bytes. Both use the same server over
// one kept connection and no cache, on loopback and with a delay per request like that of a distant server. `make
// bench-content` prints the ratios.
func BenchmarkContent(b *testing.B) {
	content := noise(886) // an agent's registration
	g := ipfstest.New()
	uris := map[string]string{
		"block":   "ipfs://" + g.AddFile(content).String(),
		"nested":  "ipfs://" + g.AddDirectory(map[string][]byte{"agents/42.json": content, "b.json": []byte("{}")}).String() + "/agents/42.json",
		"sharded": "ipfs://" + g.AddShardedDirectory(map[string][]byte{"42.json": content, "b.json": []byte("{}")}).String() + "/42.json",
	}
	for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
		base := serve(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
			if strings.HasPrefix(r.URL.Path, "/plain") {
				_, _ = w.Write(content)
				return
			}
			g.Handler().ServeHTTP(w, r)
		}))
		for _, what := range []string{"block", "nested", "sharded"} {
			name := fmt.Sprintf("delay=%s/what=%s", delay, what)
			b.Run(name+"/how=get", func(b *testing.B) {
				client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
				defer client.CloseIdleConnections()
				for b.Loop() {
					got, err := get(b, client, base+"/plain")
					if err != nil || !bytes.Equal(got, content) {
						b.Fatalf("%d bytes, %v", len(got), err)
					}
				}
			})
			b.Run(name+"/how=fetch", func(b *testing.B) {
				f := newFetcher(b, ipfs.Config{Gateways: []string{base}, CacheBytes: -1, Hedge: time.Second})
				for b.Loop() {
					doc, err := f.Fetch(b.Context(), uris[what], mib)
					if err != nil || !bytes.Equal(doc.Bytes, content) || doc.Source != ipfs.SourceCID {
						b.Fatalf("%d bytes, %v", len(doc.Bytes), err)
					}
				}
			})
		}
	}
}

// get is the plain, unverified GET of the comparison.
func get(b *testing.B, client *http.Client, url string) ([]byte, error) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}
