package delivery

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// awayChain is a chain whose node does not answer while away is set.
type awayChain struct {
	Chain
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

// TestHeldForWantOfAGateway: a delivery with a registration or a feedback file on Arweave waits, at no cost, for a
// worker with a gateway.
func TestHeldForWantOfAGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	gateway := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/registration") {
			_, _ = rw.Write(asJSON(at(a.URL)))
			return
		}
		_, _ = io.WriteString(rw, `{"text":"fine"}`)
	}))
	t.Cleanup(gateway.Close)
	registered, _ := w.rate(devnet.Feedback{AgentID: w.registerURI("ar://registration")})
	filed, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), URI: "ar://file"})
	jobs := map[string]map[string]any{"registration": registered, "file": filed}
	k := w.newWorker()
	for name, j := range jobs {
		id := w.accept(j)
		if _, err := k.deliver(t.Context(), id, 1); err != nil {
			t.Fatal(err)
		}
		d := w.row(id)
		if d.Status != store.Held || d.Reason != outcome.GatewayUnconfigured || d.Attempts != 0 || !strings.Contains(d.Error, "ARWEAVE_GATEWAY") {
			t.Errorf("%s: %s %s after %d attempts: %s", name, d.Status, d.Reason, d.Attempts, d.Error)
		}
	}
	w.reconcile(w.newReconciler())
	for name, j := range jobs {
		if d := w.row(w.submit(j)[0].ID); d.Status != store.Held {
			t.Errorf("%s is %s though that worker has no gateway either", name, d.Status)
		}
	}

	w.reconcile(w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Gateway = true }))
	guard := guardtest.Loopback(w.t, nil)
	fetcher := must(ipfs.New(ipfs.Config{Arweave: gateway.URL, Guard: guard, Logger: w.logger()}))
	t.Cleanup(fetcher.Close)
	resolve := must(resolver.New(resolver.Config{Chain: chainsReader{w.chain}, Fetcher: fetcher}))
	t.Cleanup(resolve.Close)
	w.serve(w.newWorker(func(c *Config) { c.Fetcher, c.Resolver = fetcher, resolve }))
	for name, j := range jobs {
		d := w.until(w.submit(j)[0].ID, store.Delivered)
		if name == "file" && d.FileSource != "ar" {
			t.Errorf("%s: source %q", name, d.FileSource)
		}
	}
}
