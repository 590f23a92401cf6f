package node

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/guardtest"
)

// TestErrorMessages: errors between Herald and a node have messages of Herald's own.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	for _, f := range guardtest.Failures(t, "the node did not answer within 3 s") {
		urls := []string{f.URL}
		if f.Name != "a redirect" && f.Name != "500" { // websocket handshakes have another message
			urls = append(urls, strings.Replace(f.URL, "http", "ws", 1))
		}
		for _, url := range urls {
			scheme, _, _ := strings.Cut(url, ":")
			t.Run(f.Name+" over "+scheme, func(t *testing.T) {
				t.Parallel()
				address := secret.New(url + "/v3/s3cret-of-ours")
				c := newPool(t, Config{ChainID: 1, URLs: []secret.Secret{address}, Timeout: f.Wait()})
				err := c.Ping(t.Context())
				if err == nil || strings.Contains(err.Error(), "s3cret") {
					t.Fatal(err)
				}
				guardtest.RefuseGoWords(t, url, err.Error())
				if url == f.URL && !strings.Contains(err.Error(), f.Says) {
					t.Errorf("it does not say %q: %v", f.Says, err)
				}
			})
		}
	}
}
