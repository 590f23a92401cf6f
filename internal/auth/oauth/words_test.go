package oauth

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestErrorMessages checks that every failure between Herald and an authorization server is described in Herald's own
// words.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	list := append(guardtest.Failures(t, "did not answer within 3 s"),
		guardtest.Failing{Name: "no such name", URL: "https://" + guardtest.NoSuchName, Says: "DNS does not know the name " + guardtest.NoSuchName})
	for _, f := range list {
		client := newGuardedClient(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Resolver: guardtest.Resolver(t, nil)},
			func(c *Config) { c.Timeout = f.Wait() })
		_, err := client.Resource(heraldtest.Within(t, 2*time.Minute), f.URL+"/s3cret", Challenge{})
		if _, ok := errors.AsType[*UnavailableError](err); !ok && f.Name != "a redirect" {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		guardtest.RefuseGoWords(t, f.Name, err.Error())
		heraldtest.Contains(t, f.Name, err.Error(), f.Says)
		heraldtest.Lacks(t, f.Name, err.Error(), "s3cret")
	}
}
