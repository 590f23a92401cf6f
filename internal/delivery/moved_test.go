package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMovedAgent: an agent registers another endpoint while the former one is in the worker's cache, and the server
// there begins to refuse everything. The feedback reaches the new endpoint. It is rejected if the agent did not move.
func TestMovedAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clock := heraldtest.NewClock(time.Now())
	_, resolve := w.newResolver(ipfs.Config{Guard: guardtest.Loopback(t, nil)}, clock.Now)
	w.serve(w.newWorker(func(c *Config) { c.Resolver = resolve }))
	move := func(id *big.Int, to *agent) {
		w.mu.Lock()
		defer w.mu.Unlock()
		_, err := w.net.SetURI(heraldtest.Within(t, 20*time.Second), w.net.Account(0), id, "data:application/json,"+string(asJSON(at(to.URL))))
		heraldtest.Must(t, err)
	}
	for _, moves := range []bool{true, false} {
		w.run(t, fmt.Sprint("moved: ", moves), func(t *testing.T, w *world) {
			var gone atomic.Bool
			former, next := newAgent(t, onAny(func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
				if gone.Load() {
					http.Error(w, "no such deployment", http.StatusGone) // classify.TestClassify has the other errors
				}
				return gone.Load()
			})), newAgent(t)
			id, want := w.register(at(former.URL)), outcome.Rejected
			w.until(w.accept(w.feedback(id)), outcome.Delivered) // now its endpoint is in the cache
			gone.Store(true)
			clock.Advance(time.Minute)
			if moves {
				move(id, next)
				want = outcome.Delivered
			}
			d := w.until(w.accept(w.feedback(id)), want)
			if moves && (d.Endpoint != next.URL || d.Attempts != 2 || len(next.received()) != 1) || !moves && (d.Reason != "bad_response" || d.Attempts != 1) {
				t.Errorf("%s after %d attempts at %s: %s", d.Reason, d.Attempts, d.Endpoint, d.Error)
			}
		})
	}
}

// unreadableAnew is a resolver whose chain is away whenever a cached endpoint may be outdated.
type unreadableAnew struct{ Resolver }

func (r unreadableAnew) Resolve(ctx context.Context, a resolver.Agent) (resolver.Target, error) {
	if a.Anew {
		return resolver.Target{}, &node.UnavailableError{Op: "reading the registry", Err: errAway}
	}
	return r.Resolver.Resolve(ctx, a)
}

// TestMoveIsUnknown: an agent refuses calls at its cached endpoint, and the chain does not answer whether it moved. The
// attempt counts, because the agent was called, and the next one does not use the cache.
func TestMoveIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var gone atomic.Bool
	a := newAgent(t, breaksWhile(http.StatusGone, gone.Load))
	_, resolve := w.newResolver(ipfs.Config{Guard: guardtest.Loopback(t, nil)}, nil)
	w.serve(w.newWorker(func(c *Config) { c.Resolver = unreadableAnew{resolve} }))
	id := w.register(at(a.URL))
	w.until(w.accept(w.feedback(id)), outcome.Delivered) // now its endpoint is in the cache
	gone.Store(true)
	d := w.until(w.accept(w.feedback(id)), outcome.Rejected)
	if len(d.History) != 2 || d.History[0].Reason != outcome.ConnectFailed ||
		!strings.Contains(d.History[0].Error, "Whether the agent moved is unknown") {
		t.Errorf("%d attempts, %s: %+v", d.Attempts, d.Error, d.History)
	}
}
