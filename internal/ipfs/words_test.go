package ipfs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/guardtest"
)

// TestErrorMessages: errors between Herald and a web server or gateway have messages of Herald's own.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	guard := guardtest.Loopback(t, guardtest.Resolver(t, nil))
	list := guardtest.Failures(t, "did not answer within 3 s")
	name := guardtest.Failing{Name: "no such name", URL: "https://" + guardtest.NoSuchName, Says: "DNS does not know the name " + guardtest.NoSuchName}
	patience := func(f guardtest.Failing) ipfs.Config {
		return ipfs.Config{Guard: guard, Timeout: f.Wait(), TryTimeout: f.Wait()}
	}
	for _, f := range append(list, name) {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			_, err := newFetcher(t, patience(f)).Fetch(t.Context(), f.URL+"/agent.json?key=s3cret", mib)
			refuseGo(t, f.Name, f.Says, err)
		})
	}
	for _, f := range list {
		t.Run(f.Name+" of a gateway", func(t *testing.T) {
			t.Parallel()
			cfg := patience(f)
			cfg.Gateways = []string{f.URL}
			const document = "ipfs://bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
			_, err := newFetcher(t, cfg).Fetch(t.Context(), document, mib)
			refuseGo(t, f.Name, f.Says, err)
		})
	}
}

func refuseGo(t *testing.T, name, says string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s does not say %q: %v", name, says, err)
		return
	}
	guardtest.RefuseGoWords(t, name, err.Error())
}

// TestWaitForHeaders: the error names the time that a web server got to begin its answer, not that of a whole fetch.
func TestWaitForHeaders(t *testing.T) {
	t.Parallel()
	base := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	_, err := newFetcher(t, ipfs.Config{}).Fetch(t.Context(), base+"/agent.json", mib)
	refuseGo(t, "a silent server", "the server did not answer within 5 s", err)
}
