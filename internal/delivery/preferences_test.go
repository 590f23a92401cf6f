package delivery

import (
	"context"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

// askingAgent is an mcp-go server that adds preferences to its answers.
type askingAgent struct {
	url   string
	calls atomic.Int32

	mu      sync.Mutex
	says    any // nil: no preferences
	refuses bool
}

func newAskingAgent(t testing.TB) *askingAgent {
	t.Helper()
	a := &askingAgent{}
	s := mcpserver.NewMCPServer("asking-agent", "1", mcpserver.WithToolCapabilities(false))
	s.AddTool(mcp.NewToolWithRawSchema("agent.receiveFeedback", "", json.RawMessage(`{"type": "object"}`)),
		func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			a.calls.Add(1)
			a.mu.Lock()
			defer a.mu.Unlock()
			result := mcp.NewToolResultText("thank you")
			result.IsError = a.refuses
			if a.says != nil {
				result.Meta = mcp.NewMetaFromMap(map[string]any{mcpcall.PreferencesKey: a.says})
			}
			return result, nil
		})
	mux := http.NewServeMux() // a GET of another path, as for the domain's file, would open a stream
	mux.Handle("/mcp", mcpserver.NewStreamableHTTPServer(s))
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.CloseClientConnections() // streams are open
		srv.Close()
	})
	a.url = srv.URL + "/mcp"
	return a
}

func (a *askingAgent) say(what any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.says = what
}

// asks contains an agent's preferences.
type asks = map[string]any

// deliverNext accepts another feedback for the agent, which must be dispatched, delivers it and returns the row.
func (w *world) deliverNext(k *worker, agent *big.Int) store.Delivery {
	w.t.Helper()
	id := w.accept(w.feedback(agent))
	w.deliverAgain(k, id)
	return w.row(id)
}

func (w *world) deliverAgain(k *worker, id uuid.UUID) {
	w.t.Helper()
	n := w.row(id).Dispatch
	if note, err := k.deliver(w.t.Context(), id, n); n == 0 || note == "no attempt" {
		w.t.Fatalf("task %d: %q, %v", n, note, err)
	}
}

// deliverNow is deliverNext for an agent whose backlog may be paused.
func (w *world) deliverNow(k *worker, agent *big.Int) store.Delivery {
	w.t.Helper()
	w.releaseLines()
	return w.deliverNext(k, agent)
}

func (w *world) releaseLines() {
	w.t.Helper()
	w.exec(`UPDATE herald.agents SET line_held_until = NULL`)
}

// due ends the delivery's wait and all pauses of backlogs.
func (w *world) due(id uuid.UUID) {
	w.t.Helper()
	w.exec(`UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, id)
	w.releaseLines()
}

// isPutOff checks that the delivery waits because of the agent's preferences, at no cost.
func isPutOff(t testing.TB, d store.Delivery, words string) {
	t.Helper()
	if d.Status != store.Waiting || d.Reason != reason.Throttled || d.Attempts != 0 || len(d.History) != 0 || !strings.Contains(d.Error, words) {
		t.Errorf("%s %s, %d attempts: %s", d.Status, d.Reason, d.Attempts, d.Error)
	}
}

// TestPreferences: an agent's preferences are stored and applied to its own deliveries only.
func TestPreferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()

	t.Run("kept, renewed and cleared", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
		a.say(asks{"kinds": []string{"NewFeedback"}, "batchSize": 20, "maxPerSecond": 1e6, "language": "de"})
		if d := w.deliverNext(k, id); d.Status != store.Delivered {
			t.Fatalf("%s %s", d.Status, d.Error)
		}
		got := w.agentRow(id).Preferences
		if got == nil || got.SaidAt.IsZero() || !reflect.DeepEqual(*got, store.Preferences{Kinds: []string{"NewFeedback"}, BatchSize: 20, MaxPerSecond: 1e6, SaidAt: got.SaidAt}) {
			t.Fatalf("%+v", got)
		}
		// An answer without preferences changes nothing.
		a.say(nil)
		w.deliverNext(k, id)
		if same := w.agentRow(id).Preferences; !reflect.DeepEqual(same, got) {
			t.Errorf("%+v", same)
		}
		// The claim contains them.
		c := must(w.store.Claim(t.Context(), w.accept(w.feedback(id)), 1, time.Minute))
		if !reflect.DeepEqual(c.Preferences, *got) {
			t.Errorf("%+v", c.Preferences)
		}
		// New preferences replace all earlier ones.
		a.say(asks{"pauseUntil": until.Format(time.RFC3339), "batchSize": 0})
		w.deliverNext(k, id)
		got = w.agentRow(id).Preferences
		if !got.PauseUntil.Equal(until) || got.Kinds != nil || got.BatchSize != 0 || !reflect.DeepEqual(got.NotUnderstood, []string{"batchSize"}) {
			t.Errorf("%+v", got)
		}
		if lines := strings.Count(w.log.String(), "an agent's preferences are not understood"); lines != 1 {
			t.Errorf("logged %d times", lines)
		}
		w.exec(`UPDATE herald.agents SET preferences = preferences - 'pauseUntil' WHERE agent_id = $1`, id.String())
		w.deliverNow(k, id)
		if lines := strings.Count(w.log.String(), "an agent's preferences are not understood"); lines != 1 {
			t.Errorf("the same is logged %d times", lines)
		}
		w.exec(`UPDATE herald.agents SET preferences = preferences - 'pauseUntil' WHERE agent_id = $1`, id.String())
		a.say(asks{})
		w.deliverNow(k, id)
		if got = w.agentRow(id).Preferences; !reflect.DeepEqual(*got, store.Preferences{SaidAt: got.SaidAt}) {
			t.Errorf("%+v", got)
		}
	})

	t.Run("kinds", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		a.say(asks{"kinds": []string{"ResponseAppended", "ValidationResponse"}})
		w.deliverNext(k, id)
		d := w.deliverNext(k, id)
		if d.Status != store.Skipped || d.Reason != reason.ToolNotOffered || a.calls.Load() != 1 ||
			!strings.Contains(d.Error, "asked not to receive NewFeedback (it wants only ResponseAppended, ValidationResponse)") {
			t.Errorf("%s %s after %d calls: %s", d.Status, d.Reason, a.calls.Load(), d.Error)
		}
		// A replay does not override the agent's preferences. The operator's policy does.
		replay := func() store.Delivery {
			t.Helper()
			if n, _, _, err := w.store.Replay(t.Context(), []uuid.UUID{d.ID}, true); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			w.deliverAgain(k, d.ID)
			return w.row(d.ID)
		}
		if again := replay(); again.Status != store.Skipped {
			t.Errorf("%s", again.Status)
		}
		w.mustSet(id, store.Policy{Preferences: store.PreferencesIgnore})
		if again := replay(); again.Status != store.Delivered {
			t.Errorf("%s %s", again.Status, again.Error)
		}
		if w.agentRow(id).Preferences.Kinds == nil {
			t.Error("what is ignored is not shown")
		}
	})

	t.Run("a pause", func(t *testing.T) {
		w, a, neighbour := w.in(t), newAskingAgent(t), newAgent(t)
		id, other := w.register(at(a.url)), w.register(at(a.url))
		a.say(asks{"pauseUntil": time.Now().Add(time.Hour).Format(time.RFC3339)})
		w.deliverNext(k, id)
		d := w.deliverNow(k, id)
		isPutOff(t, d, "the agent asked for no calls until ")
		if left := time.Until(*d.NextAttemptAt); left < 0 || left > pauseLook || a.calls.Load() != 1 {
			t.Errorf("it waits %v, after %d calls", left, a.calls.Load())
		}
		// New deliveries stay in the backlog, also after a round of the reconciler.
		behind := w.accept(w.feedback(id))
		w.reconcile(w.newReconciler())
		if row := w.row(behind); row.Status != store.Queued || row.Dispatch != 0 {
			t.Errorf("%s, dispatched %d times", row.Status, row.Dispatch)
		}
		// Other agents of the origin do not wait, nor does a job with another endpoint.
		a.say(nil)
		if d := w.deliverNext(k, other); d.Status != store.Delivered {
			t.Errorf("%s %s", d.Status, d.Error)
		}
		elsewhere := w.accept(with(w.feedback(id), own(neighbour.URL, nil)))
		w.exec(`UPDATE herald.deliveries SET handed_at = now(), dispatch = 1 WHERE id = $1`, elsewhere)
		w.deliverAgain(k, elsewhere)
		if d := w.row(elsewhere); d.Status != store.Delivered {
			t.Errorf("%s %s", d.Status, d.Error)
		}
		// Deliveries continue when the pause is over.
		w.exec(`UPDATE herald.agents SET preferences = jsonb_set(preferences, '{pauseUntil}', '"2026-01-01T00:00:00Z"') WHERE agent_id = $1`, id.String())
		w.due(d.ID)
		w.deliverAgain(k, d.ID)
		if row := w.row(d.ID); row.Status != store.Delivered {
			t.Errorf("%s %s", row.Status, row.Error)
		}
		if row := w.row(behind); row.Dispatch != 1 {
			t.Errorf("the next in line is dispatched %d times", row.Dispatch)
		}
	})

	t.Run("a pause that the operator ends", func(t *testing.T) {
		for name, end := range map[string]func(*world, *big.Int){
			"ignored": func(w *world, id *big.Int) { w.mustSet(id, store.Policy{Preferences: store.PreferencesIgnore}) },
			"cleared": func(w *world, id *big.Int) {
				if err := w.store.ClearPreferences(w.t.Context(), w.agentOf(id)); err != nil {
					w.t.Fatal(err)
				}
			},
			"aged": func(w *world, id *big.Int) {
				w.exec(`UPDATE herald.agents SET line_held_until = NULL,
					preferences = preferences || '{"saidAt": "2026-01-01T00:00:00.000Z", "pauseUntil": "9999-12-31T23:59:59Z"}' WHERE agent_id = $1`, id.String())
			},
		} {
			t.Run(name, func(t *testing.T) {
				w, a := w.in(t), newAskingAgent(t)
				id := w.register(at(a.url))
				a.say(asks{"pauseUntil": "9999-12-31T23:59:59Z"})
				w.deliverNext(k, id)
				if until := w.agentRow(id).Preferences.PauseUntil; time.Until(until) > store.MaxPause {
					t.Errorf("paused until %v", until)
				}
				d := w.deliverNow(k, id)
				isPutOff(t, d, "no calls until")
				a.say(nil)
				end(w, id)
				if d := w.deliverNext(k, id); d.Status != store.Delivered {
					t.Errorf("%s %s", d.Status, d.Error)
				}
				w.due(d.ID)
				w.deliverAgain(k, d.ID)
				if d := w.row(d.ID); d.Status != store.Delivered {
					t.Errorf("%s %s", d.Status, d.Error)
				}
			})
		}
	})

	t.Run("a refusal says it too", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		a.refuses = true
		a.say(asks{"batchSize": 7})
		if d := w.deliverNext(k, id); d.Reason != reason.ToolError {
			t.Fatalf("%s %s", d.Status, d.Reason)
		}
		if got := w.agentRow(id).Preferences; got == nil || got.BatchSize != 7 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("what cannot be read changes nothing", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		a.say(asks{"batchSize": 7})
		w.deliverNext(k, id)
		a.say([]int{1})
		w.deliverNext(k, id)
		if got := w.agentRow(id).Preferences; got == nil || got.BatchSize != 7 || len(got.NotUnderstood) != 1 {
			t.Errorf("%+v", got)
		}
	})

	t.Run("an enqueuer's own endpoint says nothing for the agent", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		a.say(asks{"kinds": []string{}})
		made := w.accept(with(w.feedback(id), own(a.url, nil)))
		w.deliverAgain(k, made)
		if d := w.row(made); d.Status != store.Delivered || w.agentRow(id).Preferences != nil {
			t.Errorf("%s %s, %+v", d.Status, d.Error, w.agentRow(id).Preferences)
		}
	})

	t.Run("a disabled agent is held, paused or not", func(t *testing.T) {
		w, a := w.in(t), newAskingAgent(t)
		id := w.register(at(a.url))
		a.say(asks{"pauseUntil": "9999-12-31T23:59:59Z"})
		w.deliverNext(k, id)
		if _, _, err := w.store.EnableAgent(t.Context(), w.agentOf(id), false); err != nil {
			t.Fatal(err)
		}
		if d := w.deliverNow(k, id); d.Status != store.Held || d.Reason != reason.AgentDisabled {
			t.Errorf("%s %s", d.Status, d.Reason)
		}
	})
}

func (w *world) mustSet(agent *big.Int, p store.Policy) {
	w.t.Helper()
	if err := w.store.SetPolicy(w.t.Context(), w.agentOf(agent), p); err != nil {
		w.t.Fatal(err)
	}
}

// TestMaxPerSecond: two workers together call an agent at most as often as it asked for. Other agents of its origin are
// not affected, and the operator's own limits still apply.
func TestMaxPerSecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rdb := must(w.queue.Client(5 * time.Second))
	t.Cleanup(func() { _ = rdb.Close() })
	limits := must(ratelimit.New(ratelimit.Config{Redis: rdb, Timeout: 5 * time.Second, Rate: 0.01, Burst: 4, PermitTTL: time.Minute, MaxWait: time.Millisecond, Logger: w.logger()}))
	t.Cleanup(limits.Close)
	newWorker := func(limiter Limiter) *worker {
		turns := must(ratelimit.NewTurns(ratelimit.TurnsConfig{Redis: rdb, Timeout: 5 * time.Second, Logger: w.logger()}))
		return w.newWorker(func(c *Config) { c.Turns, c.Limiter = turns, limiter })
	}
	one, two := newWorker(nil), newWorker(nil)

	a := newAskingAgent(t)
	id, other := w.register(at(a.url)), w.register(at(a.url))
	a.say(asks{"maxPerSecond": 0.01})
	for i, k := range []*worker{one, two} { // the first stores the preference, and the second takes the first turn
		if d := w.deliverNext(k, id); d.Status != store.Delivered {
			t.Fatalf("delivery %d is %s %s", i, d.Status, d.Error)
		}
	}
	for _, k := range []*worker{one, two} {
		d := w.deliverNow(k, id)
		isPutOff(t, d, "the agent asked for at most 0.01 calls a second")
		w.due(d.ID)
		w.deliverAgain(k, d.ID) // too early
		isPutOff(t, w.row(d.ID), "0.01 calls a second")
	}
	if n := a.calls.Load(); n != 2 {
		t.Errorf("%d calls", n)
	}
	a.say(nil)
	for range 3 {
		if d := w.deliverNext(two, other); d.Status != store.Delivered {
			t.Errorf("%s %s", d.Status, d.Error)
		}
	}

	// A higher rate than the operator's has no effect. If the operator's limit refuses the call, its turn is
	// returned.
	limited := newWorker(limits)
	fast := w.register(at(a.url))
	a.say(asks{"maxPerSecond": 1e6})
	for range 4 {
		if d := w.deliverNext(limited, fast); d.Status != store.Delivered {
			t.Fatalf("%s %s", d.Status, d.Error)
		}
	}
	isPutOff(t, w.deliverNext(limited, fast), "the origin of the agent's endpoint has had")
	slow := w.register(at(a.url))
	w.mustSet(slow, store.Policy{OnUnknown: store.OnUnknownHold}) // inserts the agent's row
	w.exec(`UPDATE herald.agents SET preferences = jsonb_build_object('maxPerSecond', 0.001, 'saidAt', now()) WHERE agent_id = $1`, slow.String())
	isPutOff(t, w.deliverNow(limited, slow), "the origin of the agent's endpoint has had")
	if d := w.deliverNext(one, slow); d.Status != store.Delivered {
		t.Errorf("the turn was not given back: %s %s", d.Status, d.Error)
	}
}

// TestPausedBacklogCostsNothing: the backlog of a paused agent costs nothing during the pause, and is delivered
// afterwards.
func TestPausedBacklogCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	a := newAskingAgent(t)
	id := w.register(at(a.url))
	a.say(asks{"pauseUntil": time.Now().Add(time.Hour).Format(time.RFC3339)})
	w.deliverNext(k, id)
	a.say(nil)
	// The backlog is paused before the flood arrives.
	var flood []uuid.UUID
	for range 40 {
		flood = append(flood, w.accept(w.feedback(id)))
	}
	w.serve(k)
	reconciler := w.newReconciler()
	for range 5 {
		w.reconcile(reconciler)
	}
	claims := func() (n int) {
		for _, one := range flood {
			n += w.row(one).Dispatch
		}
		return n
	}
	if n := claims(); n != 0 {
		t.Errorf("%d of the line were dispatched", n)
	}
	// The operator's policy ends the pause.
	w.mustSet(id, store.Policy{Preferences: store.PreferencesIgnore})
	w.reconcile(reconciler)
	for _, one := range flood {
		w.until(one, store.Delivered)
	}
	if n := claims(); n != len(flood) {
		t.Errorf("%d deliveries were dispatched %d times", len(flood), n)
	}
	if p, err := w.queue.Find(queue.Task{DeliveryID: flood[0], N: 1, Lane: queue.First}); err != nil || p == queue.Pending {
		t.Error(p, err)
	}
	heraldtest.Equal(t, "calls", int(a.calls.Load()), 1+len(flood))
}
