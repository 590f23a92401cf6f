package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAgentShowsEffort checks that the command shows the effort that all workers together recorded for an agent, and
// reports if it cannot read it.
func TestAgentShowsEffort(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(42, ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true})
	d.says(0, "effort 60 s left of 60 s a minute; used: nothing yet", "agent", "show", "8453:42")

	client, err := d.queue.Client(10 * time.Second)
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	b, err := effort.New(effort.Config{Size: time.Hour, Redis: client, Timeout: 10 * time.Second})
	heraldtest.Must(t, err)
	t.Cleanup(b.Close)
	of := erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registryOf(t, 8453).Hex()), ID: "42"}
	h, err := b.Begin(t.Context(), of)
	heraldtest.Must(t, err)
	h.Spend(effort.Calls, 1, 25*time.Minute)
	h.End()
	var shown operator.Agent
	for range 100 {
		if shown = ask[operator.Agent](d, "agent", "show", "8453:42"); shown.Effort.Calls > 0 {
			break
		}
	}
	if e := shown.Effort; e.Budget != 60 || e.Calls < 1400 || e.Left > -1340 || e.Mean != 1500 {
		t.Errorf("%+v", e)
	}

	d.env = append(d.env, "HERALD_EFFORT_BUDGET=off")
	heraldtest.Lacks(t, "without a budget", d.out("agent", "show", "8453:42"), "effort")
	d.env = append(slices.Clone(d.env[:len(d.env)-1]), "REDIS_URL=redis://127.0.0.1:1")
	d.says(0, "the agent's effort budget cannot be read: ", "agent", "show", "8453:42")
}
