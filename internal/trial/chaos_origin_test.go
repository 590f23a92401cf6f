//go:build chaos

package trial

import (
	"fmt"
	"testing"
)

// Twenty agents live at one origin; one hangs, one answers 500. The other 18 see no open breaker, and their p99, from acceptance to the
// call, is at most 1.5 times what it is without.
//
// Measured by turns, twice each, and the better of each counts, as with TestChaosHangingAgents. Calls may take so long that the hanging
// agent's breaker stays closed while it is measured: it has the places that are its share all the time.
func TestChaosOneOrigin(t *testing.T) {
	const (
		agents = 20
		rate   = 2.0 // events a second each: 40 of the 100 calls a second that the origin may have
		bound  = 1.5
		times  = 2
	)
	neighbours := func(bad ...Behaviour) load {
		return load{agents: agents, start: StartNeighbours, perSecond: rate, bad: bad,
			workers: []string{"HERALD_CALL_TIMEOUT=15s", "HERALD_LEASE=30s", "HERALD_LEASE_MARGIN=10s"}}
	}
	fails := func(Call) Act { return Act{How: Refuse, Status: 500} }
	var without, with measuredLoad
	for i := range times {
		t.Run(fmt.Sprintf("all are well, %d", i+1), func(t *testing.T) {
			m := measureLoad(t, neighbours())
			if len(m.open) > 0 {
				t.Errorf("breakers are open although all are well: %v", m.open)
			}
			without = better(without, m)
		})
		t.Run(fmt.Sprintf("one hangs and one answers 500, %d", i+1), func(t *testing.T) {
			m := measureLoad(t, neighbours(hanging, fails))
			for agent := 2; agent < agents; agent++ {
				if m.open[agent] > 0 {
					t.Errorf("agent %d, which is well, waited for a breaker", agent)
				}
			}
			if m.open[1] == 0 {
				t.Error("the breaker of the agent that answers 500 did not open")
			}
			if m.hung < 15 { // 500s until the breaker opens, and hanging calls
				t.Errorf("%d calls failed", m.hung)
			}
			with = better(with, m)
		})
	}
	p99, p99with := Quantile(without.latencies, 0.99), Quantile(with.latencies, 0.99)
	ratio := float64(p99with) / float64(max(p99, 1))
	f := NewFigures("chaos", "20 agents of one origin, one hangs, one answers 500")
	f.Add("per_second_each", rate).Add("measured_without", len(without.latencies)).Add("measured_with", len(with.latencies)).
		Add("p50_without", Quantile(without.latencies, 0.5)).Add("p50_with", Quantile(with.latencies, 0.5)).
		Add("p99_without", p99).Add("p99_with", p99with).Add("ratio", ratio).Add("failed_calls", with.hung).
		Add("idle_without", without.idle).Add("idle_with", with.idle)
	fmt.Println(f)
	if ratio > bound {
		t.Errorf("the p99 of the agents that are well is %.2f times what it is without the two, want at most %.1f", ratio, bound)
	}
}
