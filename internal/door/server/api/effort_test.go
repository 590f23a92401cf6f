package api_test

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// slowLive is a worker's live state with one slow agent.
type slowLive struct{ operator.Live }

func (slowLive) Breaker(string) string { return "" }

func (slowLive) Effort(_ context.Context, a erc8004.Agent) *effort.Usage {
	if a.ID != "1" {
		return nil
	}
	return &effort.Usage{Budget: 60, Left: -15.2, Calls: 73.1, Connections: 2.1, Mean: 24.9}
}

// TestEffort: the API and the agent's page show the rest of its effort budget, and the calls that used it up.
func TestEffort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.operator.Live = slowLive{}
	for n := range 2 {
		w.enqueue(1+n, 1)
	}
	if a := w.agent(1); a.Effort == nil || a.Effort.Left != -15.2 || a.Effort.Calls != 73.1 {
		t.Errorf("%+v", a.Effort)
	}
	const says = "-15.2 s left of 60 s a minute; used: calls 73.1 s, connections 2.1 s; an attempt takes 24.9 s"
	heraldtest.Contains(t, "the page", w.open(200, "/agents/8453:1"), says)
	heraldtest.Lacks(t, "the page of another agent", w.open(200, "/agents/8453:2"), "Effort budget")
}
