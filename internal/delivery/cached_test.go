package delivery

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// repaired is a resolver whose cache has a failure of an agent that got an endpoint afterwards.
type repaired struct{ cached error }

func (r repaired) Resolve(_ context.Context, a resolver.Agent) (resolver.Target, error) {
	if !a.Anew {
		return resolver.Target{Steps: []resolver.Step{{What: "cache"}}}, r.cached
	}
	return resolver.Target{Transport: "http", URL: "https://a.example/mcp", Steps: make([]resolver.Step, 1)}, nil
}

// TestCachedFailure: a cached failure may be older than the event, so it does not end a delivery.
func TestCachedFailure(t *testing.T) {
	t.Parallel()
	a := &attempt{claim: &ledger.Claim{Job: job.Job{AgentID: big.NewInt(1)}}}
	for _, cached := range []error{&resolver.SkipError{Reason: outcome.NoURI}, &resolver.UnboundError{}} {
		e := &Executor{Config: Config{Resolver: repaired{cached}, Chain: func(uint64) (event.Chain, bool) { return nil, true }}}
		e.Now = time.Now
		found, err := e.registeredEndpoint(t.Context(), a, false)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the endpoint", found.URL, "https://a.example/mcp")
	}
}
