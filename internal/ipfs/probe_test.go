package ipfs_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

func TestProbe(t *testing.T) {
	guard, err := netguard.New(netguard.Config{})
	heraldtest.Must(t, err)
	var urls []string
	for _, b := range []ipfstest.Behaviour{{}, {Status: http.StatusInternalServerError}, {Status: http.StatusNotFound}, {HTML: true}} {
		g := ipfstest.New()
		g.Behave(b)
		s := httptest.NewServer(g.Handler())
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	f, err := ipfs.New(ipfs.Config{Gateways: append(urls, "http://127.0.0.1:1/path"), Guard: guard})
	heraldtest.Must(t, err)
	defer f.Close()
	got := f.Probe(t.Context())
	for i, want := range []string{"", "it answered 500", "it answered 404", "it sent something else than an empty block", "could not connect to 127.0.0.1:1"} {
		said := ""
		if got[i].Err != nil {
			said = got[i].Err.Error()
		}
		if (said == "") != (want == "") || !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", got[i].Gateway, said, want)
		}
	}
	heraldtest.Equal(t, "the gateway", got[0].Gateway, urls[0])
	heraldtest.Equal(t, "the gateway", got[4].Gateway, "http://127.0.0.1:1")
}
