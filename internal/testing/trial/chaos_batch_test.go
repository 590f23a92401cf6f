//go:build chaos

package trial

import (
	"testing"
	"time"
)

const batchTimeout = 10 * time.Minute

// TestChaosBatches makes two floods at the default limits: 1,000 deliveries for an agent without batches, and 10,000
// for one with batches. The rate limit bounds the calls of each agent, so a batch call must carry at least 20 deliveries
// on average. The rate of deliveries is printed: it depends on the machine. After 10,000 more, each of two workers is
// killed (kill -9) five times. None is lost, and only deliveries that a kill interrupted are called again.
func TestChaosBatches(t *testing.T) {
	const (
		alone  = 1000
		flood  = 10000
		kills  = 10
		filled = 20 // least mean number of deliveries of a batch call
	)
	r := newRowOf(t, "10,000 events for one agent that takes batches", batchTimeout, func() (*Agents, error) { return StartAgents(2) })
	r.agents.BehaveAll(Taking(0))
	r.agents.OfferBatches(1)
	// Everything is accepted before a worker starts, and both agents have answered before.
	rate := func(n, agent int) float64 {
		r.enqueue(1, agent)
		r.must(r.AwaitFinal(r.within(time.Minute)))
		for _, w := range r.workers {
			r.must(w.Terminate(r.within(time.Minute)))
		}
		ids := r.enqueue(n, agent)
		for _, w := range r.workers {
			r.must(w.Start())
		}
		r.allReady()
		r.must(r.AwaitFinal(r.within(3 * time.Minute)))
		rows, err := r.Rows(r.ctx)
		r.must(err)
		calls, err := r.agents.Calls()
		r.must(err)
		first := calls[len(calls)-n].Begun
		var last time.Time
		for _, id := range ids {
			if rows[id].FinishedAt.After(last) {
				last = rows[id].FinishedAt
			}
		}
		return float64(n) / last.Sub(first).Seconds()
	}
	r.hire(2, 16)
	one, many := rate(alone, 0), rate(flood, 1)
	perCall := float64(flood) / float64(max(r.agents.BatchCalls(), 1))
	t.Logf("%.0f a second one by one, %.0f in batches", one, many)

	r.agents.Behave(1, Taking(think)) // so that calls are in flight, and the flood lasts for some seconds
	before := r.agents.Count()
	r.enqueue(flood, 1)
	moments := make([]Moment, kills)
	for i := range moments {
		r.underWay(before+i*flood/(2*kills), 1)
		w := r.workers[i%len(r.workers)]
		moments[i] = r.kill(w)
		r.must(w.Start())
	}
	r.allReady()
	v := r.settle(3 * time.Minute)
	r.unexplained(v.calls, moments, 2*time.Second)
	r.figures.Add("one_by_one", int(one)).Add("in_batches", int(many)).Add("times", int(many/one)).Add("per_call", perCall).
		Add("overlaps", v.calls.Overlaps())
	r.print()
	if perCall < filled {
		t.Errorf("a batch call carried %.1f deliveries on average, want at least %d", perCall, filled)
	}
}
