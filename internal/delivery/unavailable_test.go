package delivery

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestChainOutage: a node's outage of any duration costs no attempt. The waits grow, and only the expiry ends them.
func TestChainOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	id, other := w.dispatchTo(a.URL), w.dispatchTo(a.URL)
	k := w.newWorker(func(c *Config) { c.Random = func() float64 { return 0.5 } })
	node := &deaf{Chain: w.chain, away: true, always: true}
	k.chains[w.net.ChainID()] = node

	age := time.Duration(0)
	for outage := range 20 { // five times the attempts of the schedule
		k.mustDeliver(id, 1, "waiting chain_unavailable")
		d := w.shows(id, outcome.Waiting, outcome.ChainUnavailable, 0)
		heraldtest.Equal(t, "the history", len(d.History), 0)
		least, most := max(age/4, time.Second), max((age+time.Minute)/4, time.Second) // the test itself takes time
		if got := d.NextAttemptAt.Sub(d.UpdatedAt); got < min(least, 5*time.Minute) || got > min(most, 5*time.Minute) || d.Dispatch != 1 {
			t.Errorf("outage %d: waits %s as task %d, want %s to %s as task 1", outage+1, got, d.Dispatch, least, most)
		}
		age = 10 * time.Second << outage
		w.exec(`UPDATE herald.deliveries SET next_attempt_at = now(), created_at = now() - $2::interval WHERE id = $1`, id, age)
	}
	node.away = false
	k.mustDeliver(id, 1, "")
	w.shows(id, outcome.Delivered, "", 1)

	node.away = true
	k.mustDeliver(other, 1, "waiting chain_unavailable")
	w.exec(`UPDATE herald.deliveries SET accepted_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE id = $1`, other)
	heraldtest.Must(t, w.newRetention().Apply(heraldtest.Within(t, 20*time.Second)))
	w.shows(other, outcome.Dead, outcome.Expired, 0)
}
