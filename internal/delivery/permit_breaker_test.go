package delivery

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDescribeBreaker: a page shows the breaker that deliveries use.
func TestDescribeBreaker(t *testing.T) {
	t.Parallel()
	open := func() *ratelimit.Limiter {
		l, err := ratelimit.New(ratelimit.Config{PermitTTL: time.Minute, MinCalls: 1})
		heraldtest.Must(t, err)
		t.Cleanup(l.Close)
		return l
	}
	limits, unbound := open(), open()
	const address = "https://agent.example/mcp"
	call := func(l *ratelimit.Limiter, prefix, raw string, ended ratelimit.Result) {
		e := mcpcall.Endpoint{URL: raw}
		p, err := l.Acquire(t.Context(), prefix+limitedOrigin(e, store.Agent{}), limitedEndpoint(e, store.Agent{}), "one")
		heraldtest.Must(t, err)
		p.Release(t.Context(), ended)
	}
	want := func(state string) {
		t.Helper()
		if got := DescribeBreaker(address, limits, unbound); got != state {
			t.Errorf("%q, want %q", got, state)
		}
	}
	want("")
	call(limits, "", "https://AGENT.example:443/mcp", ratelimit.OK)
	want("closed")
	call(unbound, unboundPrefix, address, ratelimit.Failed)
	want("open")
	if got := DescribeBreaker(address, limits, nil); got != "closed" {
		t.Errorf("%q", got)
	}
	if got := DescribeBreaker("stdio:agent", limits, unbound); got != "" {
		t.Errorf("%q", got)
	}
}
