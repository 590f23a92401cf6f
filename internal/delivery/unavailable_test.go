package delivery

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// awayChain is a chain whose node does not answer while away is set.
type awayChain struct {
	event.Chain
	away bool
}

func (c *awayChain) Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error) {
	if c.away {
		return chain.Standing{}, &node.UnavailableError{ChainID: j.ChainID, Op: "reading the event's receipt", Err: errors.New("the node answered 503")}
	}
	return c.Chain.Check(ctx, j, v)
}

// TestChainOutage: a node's outage of any duration costs no attempt. The waits grow, and only the expiry ends them.
func TestChainOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	id, other := w.dispatchTo(a.URL), w.dispatchTo(a.URL)
	k := w.newWorker(func(c *Config) { c.Random = func() float64 { return 0.5 } })
	node := &awayChain{Chain: w.chain, away: true}
	k.chains[w.net.ChainID()] = node
	deliver := func() store.Delivery {
		if _, err := k.deliver(t.Context(), id, 1); err != nil {
			t.Fatal(err)
		}
		return w.row(id)
	}
	age := time.Duration(0)
	for outage := range 20 { // five times the attempts of the schedule
		d := deliver()
		if d.Status != store.Waiting || d.Reason != "chain_unavailable" || d.Attempts != 0 || len(d.History) != 0 {
			t.Fatalf("%s %s after %d attempts: %s", d.Status, d.Reason, d.Attempts, d.Error)
		}
		least, most := max(age/4, time.Second), max((age+time.Minute)/4, time.Second) // the test itself takes time
		if got := d.NextAttemptAt.Sub(d.UpdatedAt); got < min(least, 5*time.Minute) || got > min(most, 5*time.Minute) || d.Dispatch != 1 {
			t.Errorf("outage %d: waits %s as task %d, want %s to %s as task 1", outage+1, got, d.Dispatch, least, most)
		}
		age = 10 * time.Second << outage
		w.exec(`UPDATE herald.deliveries SET next_attempt_at = now(), created_at = now() - $2::interval WHERE id = $1`, id, age)
	}
	node.away = false
	if d := deliver(); d.Status != store.Delivered || d.Attempts != 1 {
		t.Errorf("%s %s after %d attempts", d.Status, d.Reason, d.Attempts)
	}

	node.away = true
	if _, err := k.deliver(t.Context(), other, 1); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE herald.deliveries SET accepted_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE id = $1`, other)
	heraldtest.Must(t, w.newRetention().Apply(heraldtest.Within(t, 20*time.Second)))
	if d := w.row(other); d.Status != store.Dead || d.Reason != "expired" {
		t.Errorf("%s %s", d.Status, d.Reason)
	}
}
