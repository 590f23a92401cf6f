package mcpcall

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCosts checks that Costs reports the time spent on connecting and listing, and how often each happened for this
// caller. A caller that uses an existing client and tool list has no costs.
func TestCosts(t *testing.T) {
	t.Parallel()
	now := heraldtest.NewClock(time.Now())
	takes := func(d time.Duration) func(*request) {
		return func(q *request) {
			now.Advance(d)
			q.pass()
		}
	}
	srv := serve(t, &agent{tools: `{"tools":[]}`, on: answers{"initialize": takes(3 * time.Second), "tools/list": takes(2 * time.Second), "tools/call": takes(time.Second)}})
	p := newPool(t, func(c *Config) { c.Clock = now.Now })
	ep := Endpoint{Transport: TransportHTTP, URL: srv.URL}
	var got Costs
	ctx := WithCosts(heraldtest.Within(t, 30*time.Second), &got)
	want := Costs{Connecting: 3 * time.Second, Listing: 2 * time.Second, Connections: 1, Listings: 1}
	for _, what := range []string{"the first", "the second"} {
		_, err := p.Tools(ctx, ep, false)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, what, got, want)
		_, err = p.Call(ctx, ep, Request{Tool: "x"})
		heraldtest.Must(t, err)
		heraldtest.Equal(t, what+", the call", got, want)
	}

	// A failed connection is counted too.
	srv.Close()
	p.Drop(ep)
	if _, err := p.Call(ctx, ep, Request{Tool: "x"}); err == nil || got.Connections != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}
