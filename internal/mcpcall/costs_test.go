package mcpcall

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCosts checks that Costs reports the time spent on connecting and listing, and how often each happened for this
// caller. A caller that uses an existing client and tool list has no costs.
func TestCosts(t *testing.T) {
	t.Parallel()
	now := heraldtest.NewClock(time.Now())
	srv := httptest.NewServer(&agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		switch method {
		case "initialize":
			now.Advance(3 * time.Second)
		case "tools/list":
			now.Advance(2 * time.Second)
			reply(w, id, `{"tools":[]}`)
			return true
		case "tools/call":
			now.Advance(time.Second)
		}
		return false
	}})
	defer srv.Close()
	p := newPool(t, func(c *Config) { c.Clock = now.Now })
	ep := Endpoint{Transport: TransportHTTP, URL: srv.URL}
	var got Costs
	ctx := WithCosts(heraldtest.Within(t, 30*time.Second), &got)
	want := Costs{Connecting: 3 * time.Second, Listing: 2 * time.Second, Connections: 1, Listings: 1}
	for _, what := range []string{"the first", "the second"} {
		if _, err := p.Tools(ctx, ep, false); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", what, got, err, want)
		}
		if _, err := p.Call(ctx, ep, Request{Tool: "x"}); err != nil || got != want {
			t.Errorf("%s, the call: %+v, %v; want %+v", what, got, err, want)
		}
	}

	// A failed connection is counted too.
	srv.Close()
	p.Drop(ep)
	if _, err := p.Call(ctx, ep, Request{Tool: "x"}); err == nil || got.Connections != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}
