//go:build linux

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// latency is the time in an idle system from the accepted row to the call at the agent.
type latency struct {
	n                  int
	p50, p99, most     time.Duration
	first              int // number of agents in the measurement of first contact
	firstP50, firstMax time.Duration
}

const (
	firstAgents = 100 // maximum number of agents whose first delivery is measured
	pollCalls   = 2 * time.Millisecond
	// Random pause between two deliveries, so that they do not synchronise with asynq's poll.
	longestIdle = 60 * time.Millisecond
)

// idle makes one delivery at a time: first to agents without earlier contact, then to known agents.
func (b *bench) idle(ctx context.Context) latency {
	say("latency of an idle system, %d deliveries", b.latency)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	agents := script.Must(trial.StartAgents(min(firstAgents, b.latency)))
	defer agents.Close()
	script.Check(b.site.ListAgents(agents))
	_, f, end := b.workers(ctx, load{queue: realRedis, inflight: targetInflight, agents: agents.Len()})
	defer script.Close(end)
	for range agents.Len() + b.latency {
		before := agents.Count()
		f.accept(ctx, agents, 1)
		script.Check(trial.Until(ctx, pollCalls, "one delivery to be called", func() (bool, error) { return agents.Count() > before && agents.InFlight() == 0, nil }))
		script.Sleep(ctx, rand.N(longestIdle))
	}
	waits := b.waits(ctx, agents)
	first, known := waits[:agents.Len()], waits[agents.Len():]
	out := latency{n: len(known), p50: trial.Quantile(known, .5), p99: trial.Quantile(known, .99), most: trial.Quantile(known, 1),
		first: len(first), firstP50: trial.Quantile(first, .5), firstMax: trial.Quantile(first, 1)}
	say("  p50 %s, p99 %s; first contact p50 %s, at most %s", ms(out.p50), ms(out.p99), ms(out.firstP50), ms(out.firstMax))
	return out
}

// waits returns the times from a row's acceptance, by Postgres's clock, to its call, in the order of the calls.
func (b *bench) waits(ctx context.Context, agents *trial.Agents) (out []time.Duration) {
	script.Check(b.site.AwaitFinal(ctx))
	rows := script.Must(b.site.Rows(ctx))
	for _, c := range script.Must(agents.Calls()) {
		row, ok := rows[c.Delivery]
		if !ok || c.Number > 1 || row.Status != "delivered" {
			script.Fail("delivery %s was called %d times and is %q: this is no measurement", c.Delivery, c.Number, row.Status)
		}
		out = append(out, c.Begun.Sub(row.CreatedAt))
	}
	return out
}
