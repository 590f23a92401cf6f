package admission

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func openLimiter(t *testing.T) *ratelimit.Limiter {
	l, err := ratelimit.New(ratelimit.Config{PermitTTL: time.Minute, MinCalls: 1})
	heraldtest.Must(t, err)
	t.Cleanup(l.Close)
	return l
}

// TestDescribeBreaker: a page shows the breaker that deliveries use.
func TestDescribeBreaker(t *testing.T) {
	t.Parallel()
	limits, unbound := openLimiter(t), openLimiter(t)
	const address = "https://agent.example/mcp"
	call := func(l *ratelimit.Limiter, separate bool, raw string, ended ratelimit.Result) {
		e := mcpcall.Endpoint{URL: raw}
		p, err := l.Acquire(t.Context(), OriginKey(e, erc8004.Agent{}, separate), endpointKey(e, erc8004.Agent{}), "one")
		heraldtest.Must(t, err)
		p.Release(ended)
	}
	want := func(state string) {
		t.Helper()
		heraldtest.Equal(t, "the breaker", (Origins{limits, unbound}).DescribeBreaker(address), state)
	}
	want("")
	call(limits, false, "https://AGENT.example:443/mcp", ratelimit.OK)
	want("closed")
	call(unbound, true, address, ratelimit.Failed)
	want("open")
	heraldtest.Equal(t, "without unbound limits", (Origins{Limiter: limits}).DescribeBreaker(address), "closed")
	heraldtest.Equal(t, "the breaker of a command", (Origins{limits, unbound}).DescribeBreaker("stdio:agent"), "")
}

// TestOriginKey: an endpoint at a URL has its origin, in one spelling, and a command has its name.
func TestOriginKey(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"https://A.Example.:443/other?x": "https://a.example", "https://a.example\x7f/not a URL": ""} {
		heraldtest.Equal(t, url, OriginKey(mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: url}, erc8004.Agent{}, false), want)
	}
	// A listed command is its agent's own, and its arguments may hold secrets.
	command := mcpcall.Endpoint{Transport: mcpcall.TransportStdio, Command: "node", Args: []string{"hunter2"}}
	for want, listed := range map[string]bool{"stdio:node": false, "stdio:1:0xaa:2": true} {
		command.Listed = listed
		heraldtest.Equal(t, want, OriginKey(command, erc8004.Agent{ChainID: 1, Registry: "0xaa", ID: "2"}, false), want)
	}
}

// TestEndpoint: a breaker belongs to a URL with its query, independent of the origin's spelling and the fragment, or to
// a command line. An endpoint of the servers file belongs to its agent only.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	of := func(e mcpcall.Endpoint) string { return endpointKey(e, erc8004.Agent{}) }
	for url, want := range map[string]string{
		"https://a.example":                      "https://a.example/?",
		"https://A.Example.:443/":                "https://a.example/?",
		"https://a.example/mcp":                  "https://a.example/mcp?",
		"https://a.example/mcp#x":                "https://a.example/mcp?",
		"https://a.example/mcp?agent=1":          "https://a.example/mcp?agent=1",
		"https://a.example/a%2Fb":                "https://a.example/a%2Fb?",
		"https://user:secret@a.example/mcp":      "https://a.example/mcp?",
		"https://a.example\x7f/not a URL":        "",
		"https://a.example:8443/.well-known/mcp": "https://a.example:8443/.well-known/mcp?",
	} {
		heraldtest.Equal(t, url, of(mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: url}), want)
	}
	command := func(args ...string) string {
		return of(mcpcall.Endpoint{Transport: mcpcall.TransportStdio, Command: "npx", Args: args})
	}
	a, again := command("a"), command("a")
	if a == command("b") || command("a", "b") == command("ab") || a != again {
		t.Error("commands are not told apart by their arguments")
	}
}

// recordedLimits records the acquired endpoints, and refuses none.
type recordedLimits struct {
	*ratelimit.Limiter
	asked []string
}

func (l *recordedLimits) Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error) {
	l.asked = append(l.asked, origin+" "+endpoint)
	return l.Limiter.Acquire(ctx, origin, endpoint, token)
}

// TestUnboundAgentsTakeNoTurn: minting agents with a path each gives a party neither a call nor a turn of the origin's.
func TestUnboundAgentsTakeNoTurn(t *testing.T) {
	t.Parallel()
	own, small := openLimiter(t), openLimiter(t)
	origin := &recordedLimits{Limiter: own}
	limits := Origins{Limiter: origin, Unbound: small}
	for i, by := range []Caller{Unbound, JobNames, Bound} {
		e := mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: fmt.Sprintf("https://a.example/%d", i)}
		permit, err := limits.Acquire(t.Context(), e, erc8004.Agent{}, by, fmt.Sprint(i))
		heraldtest.Must(t, err)
		permit.Release(ratelimit.OK)
	}
	heraldtest.Equal(t, "acquired", origin.asked, []string{"https://a.example https://a.example/2?"})
}
