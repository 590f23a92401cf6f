package delivery

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/limits"
	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/store"
)

// TestLimitsOfAnOrigin: what an origin cannot take now waits at no cost, and leaves the agent's line alone.
func TestLimitsOfAnOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	// limited makes a worker with limits of its own.
	limited := func(t *testing.T, w *world, cfg limits.Config) *worker {
		cfg.Hold, cfg.Patience, cfg.Logger = time.Minute, time.Millisecond, w.logger()
		l := must(limits.New(cfg))
		t.Cleanup(l.Close)
		return w.newWorker(func(c *Config) { c.Limits = l })
	}
	waits := func(t *testing.T, w *world, d store.Delivery, reason string) {
		t.Helper()
		if d.Status != store.Waiting || d.Reason != reason || d.Attempts != 0 || len(d.History) != 0 {
			t.Errorf("%s %s, %d attempts, %d in its history", d.Status, d.Reason, d.Attempts, len(d.History))
		}
	}

	t.Run("calls in flight", func(t *testing.T) {
		w := w.in(t)
		begun, finish := make(chan bool, 1), make(chan bool)
		a := newAgent(t, onCall(func(int, http.ResponseWriter, *http.Request, json.RawMessage) bool {
			begun <- true
			<-finish
			return false
		}))
		k := limited(t, w, limits.Config{Inflight: 1})
		first, second := w.handOut(a.URL), w.handOut(a.URL) // two agents of one origin
		done := make(chan string, 1)
		go func() {
			note, _ := k.runner.Deliver(t.Context(), first, 1)
			done <- note
		}()
		receive(t, "the call", begun)
		if note, err := k.runner.Deliver(t.Context(), second, 1); err != nil || !strings.HasPrefix(note, "waiting agent_busy") {
			t.Errorf("%q, %v", note, err)
		}
		waits(t, w, w.row(second), "agent_busy")
		close(finish)
		if note := receive(t, "the end", done); note != "delivered" {
			t.Error(note)
		}
		w.exec(`UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, second)
		if note, err := k.runner.Deliver(t.Context(), second, 2); err != nil || note != "delivered" {
			t.Errorf("after the place was given back: %q, %v", note, err)
		}
	})

	t.Run("rate", func(t *testing.T) {
		w := w.in(t)
		a := newAgent(t)
		k := limited(t, w, limits.Config{Rate: 0.001, Burst: 1})
		first, second := w.handOut(a.URL), w.handOut(a.URL)
		if note, err := k.runner.Deliver(t.Context(), first, 1); err != nil || note != "delivered" {
			t.Fatalf("%q, %v", note, err)
		}
		if note, err := k.runner.Deliver(t.Context(), second, 1); err != nil || !strings.HasPrefix(note, "waiting throttled") {
			t.Errorf("%q, %v", note, err)
		}
		waits(t, w, w.row(second), "throttled")
	})

	t.Run("breaker", func(t *testing.T) {
		w := w.in(t)
		calls := 0
		a := newAgent(t, onCall(func(n int, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			calls = n
			http.Error(rw, "broken", 500)
			return true
		}))
		k := limited(t, w, limits.Config{MinCalls: 3})
		for range 3 {
			if note, err := k.runner.Deliver(t.Context(), w.handOut(a.URL), 1); err != nil || !strings.HasPrefix(note, "waiting server_error") {
				t.Fatalf("%q, %v", note, err)
			}
		}
		id := w.handOut(a.URL)
		if note, err := k.runner.Deliver(t.Context(), id, 1); err != nil || !strings.HasPrefix(note, "waiting breaker_open") {
			t.Errorf("%q, %v", note, err)
		}
		waits(t, w, w.row(id), "breaker_open")
		if calls != 3 {
			t.Errorf("%d calls", calls)
		}
	})

	t.Run("an agent that says no is well", func(t *testing.T) {
		w := w.in(t)
		a := newAgent(t, func(a *agent) { a.tool = "another" })
		k := limited(t, w, limits.Config{MinCalls: 3})
		for range 5 {
			if _, err := k.runner.Deliver(t.Context(), w.handOut(a.URL), 1); err == nil || !strings.Contains(err.Error(), "tool_not_found") {
				t.Fatalf("%v", err)
			}
		}
	})

	t.Run("the agent's line stays in Postgres", func(t *testing.T) {
		w := w.in(t)
		a := newAgent(t)
		k := limited(t, w, limits.Config{Rate: 0.001, Burst: 1})
		if note, err := k.runner.Deliver(t.Context(), w.handOut(a.URL), 1); err != nil || note != "delivered" {
			t.Fatalf("%q, %v", note, err)
		}
		agent := w.register(at(a.URL))
		var last store.Delivery
		for range store.HandOut + 2 {
			j, _ := w.rate(devnet.Feedback{AgentID: agent})
			last = w.row(w.accept(j))
		}
		if last.Dispatch != 0 {
			t.Fatalf("the last one is handed out: %d", last.Dispatch)
		}
		first := must(w.store.Deliveries(t.Context(), store.Filter{ChainID: &last.ChainID, AgentID: last.AgentID, Status: store.Queued, Limit: 100}))
		if note, err := k.runner.Deliver(t.Context(), first[len(first)-1].ID, 1); err != nil || !strings.HasPrefix(note, "waiting throttled") {
			t.Fatalf("%q, %v", note, err)
		}
		if d := w.row(first[1].ID); d.Dispatch != 0 {
			t.Errorf("a wait of this kind handed out the next, which would wait as well: dispatch %d", d.Dispatch)
		}
	})
}
