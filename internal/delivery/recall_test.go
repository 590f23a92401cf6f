package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

var errAway = errors.New("it is away")

// dies runs a worker that claims and calls, then loses Postgres and dies. The task gets the delivery's own error. After
// a success it gets none, because asynq was answered before the record. The row does not contain the outcome.
func (w *world) dies(id uuid.UUID, n int, adapt ...func(*Config)) {
	w.t.Helper()
	kept := make(chan bool, 1)
	k := w.newWorker(append([]func(*Config){func(c *Config) {
		c.Ledger = &faulty{Ledger: w.store, record: func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) {
			return ledger.Recorded{}, errAway
		}}
		c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), keep: func() error { kept <- true; return nil }}
	}}, adapt...)...)
	ended := k.goDeliver(id, n)
	heraldtest.Receive(w.t, "the outcome is kept", kept)
	k.giveUp()
	if note := heraldtest.Receive(w.t, "the end", ended); note != "" && !strings.Contains(note, errAway.Error()) {
		w.t.Fatal(note)
	}
	heraldtest.Equal(w.t, "the status, though nothing could be recorded", w.row(id).Status, outcome.Running)
}

// loseOutcome runs a worker that calls and dies before Postgres has the outcome, and ends its lease.
func (w *world) loseOutcome(id uuid.UUID) ledger.Delivery {
	w.t.Helper()
	w.dies(id, 1)
	return w.expire(id)
}

// giveUp ends the worker, which does not wait for its deliveries.
func (k *worker) giveUp() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k.runner.Wait(ctx)
}

// results is a spool whose faults occur after the request.
type results struct {
	OutcomeSpool
	keep, kept, forget func() error
}

func (r *results) Put(ctx context.Context, id string, b []byte) error {
	err := r.OutcomeSpool.Put(ctx, id, b)
	if r.keep != nil {
		err = errors.Join(err, r.keep())
	}
	return err
}

func (r *results) Get(ctx context.Context, id string) ([]byte, error) {
	if r.kept != nil {
		if err := r.kept(); err != nil {
			return nil, err
		}
	}
	return r.OutcomeSpool.Get(ctx, id)
}

func (r *results) Delete(ctx context.Context, id string) error {
	if r.forget != nil {
		if err := r.forget(); err != nil {
			return err
		}
	}
	return r.OutcomeSpool.Delete(ctx, id)
}

// expire ends the delivery's lease and dispatches it again.
func (w *world) expire(id uuid.UUID) ledger.Delivery {
	w.t.Helper()
	w.exec(`UPDATE herald.work SET lease_until = now() - interval '1 second' WHERE id = $1`, id)
	w.reconcile(w.newReconciler())
	d := w.row(id)
	if d.Status != outcome.Queued {
		w.t.Fatalf("%s %s after its lease ran out", d.Status, d.Reason)
	}
	return d
}

func (w *world) policy(id uuid.UUID, onUnknown string) {
	w.t.Helper()
	d := w.row(id)
	a := erc8004.Agent{ChainID: d.ChainID, Registry: d.IdentityRegistry, ID: d.AgentID}
	heraldtest.Must(w.t, records.New(w.store).SetPolicy(w.t.Context(), a, policy.Policy{OnUnknown: onUnknown}))
}

// TestKnownOutcomes: an agent is not called again when a worker knows the outcome.
func TestKnownOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	w.run(t, "delivered, and Postgres was away", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		again := w.loseOutcome(id)
		w.newWorker().mustDeliver(id, again.Dispatch, "")
		d := w.row(id)
		if d.Status != outcome.Delivered || d.Attempts != 1 || len(d.History) != 1 || d.History[0].Outcome != "delivered" || d.History[0].Response == nil {
			t.Errorf("%s after %d attempts: %+v", d.Status, d.Attempts, d.History)
		}
		heraldtest.Equal(t, "calls", len(a.received()), 1)
		if b, err := w.queue.Outcomes().Get(t.Context(), id.String()); err != nil || b != nil {
			t.Errorf("Redis still has %s, %v", b, err)
		}
	})

	w.run(t, "delivered, and the next attempt ends without Redis and without a record", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		again := w.loseOutcome(id)
		tried := make(chan bool, 1)
		next := w.newWorker(func(c *Config) {
			c.Ledger = &faulty{Ledger: w.store, record: func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) {
				tried <- true
				return ledger.Recorded{}, errAway
			}}
			c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), kept: func() error { return errAway }}
			c.SpoolTimeout, c.RecordPause = time.Millisecond, time.Hour
		})
		ended := next.goDeliver(id, again.Dispatch)
		heraldtest.Receive(t, "the record", tried)
		next.giveUp()
		heraldtest.Contains(t, "the end", heraldtest.Receive(t, "the end", ended), errAway.Error())
		again = w.expire(id)
		w.newWorker().mustDeliver(id, again.Dispatch, "")
		heraldtest.Equal(t, "the status", w.row(id).Status, outcome.Delivered)
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.run(t, "delivered in the last attempt", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		w.exec(`UPDATE herald.work SET budget_base = -3 WHERE id = $1`, id)
		again := w.loseOutcome(id)
		k := w.newWorker(func(c *Config) {
			c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), kept: func() error { return errAway }}
			c.SpoolTimeout = time.Millisecond
		})
		k.mustDeliver(id, again.Dispatch, "waiting internal_error")
		w.due(id)
		w.newWorker().mustDeliver(id, again.Dispatch, "")
		w.shows(id, outcome.Delivered, "", 1)
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.run(t, "delivered, and Redis lost the outcome", func(t *testing.T, w *world) {
		a := newAgent(t)
		id, spool, lost := w.dispatchTo(a.URL), w.queue.Outcomes(), atomic.Bool{}
		k := w.newWorker(func(c *Config) {
			c.Ledger = &faulty{Ledger: w.store, record: func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) {
				return ledger.Recorded{}, errAway
			}}
			c.Spool = &results{OutcomeSpool: spool, keep: func() error {
				defer lost.Store(true)
				return spool.Delete(t.Context(), id.String())
			}}
		})
		ended := k.goDeliver(id, 1)
		heraldtest.Await(t, "Redis has the outcome again", func() bool {
			return lost.Load() && len(must(spool.Get(t.Context(), id.String()))) > 0
		})
		k.giveUp()
		heraldtest.Receive(t, "the end", ended)
		w.newWorker().mustDeliver(id, w.expire(id).Dispatch, "")
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.run(t, "delivered late, after the next claim and before its look at Redis", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		away, kept := make(chan bool), make(chan bool, 1)
		late := w.newWorker(func(c *Config) {
			c.Ledger = &faulty{Ledger: w.store, record: func(ctx context.Context, cl *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
				select {
				case <-away:
					return w.store.Record(ctx, cl, o)
				default:
					return ledger.Recorded{}, errAway
				}
			}}
			c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), keep: func() error { kept <- true; return nil }}
		})
		ended := late.goDeliver(id, 1)
		heraldtest.Receive(t, "the outcome is kept", kept)
		again := w.expire(id)
		next := w.newWorker(func(c *Config) {
			c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), kept: func() error {
				close(away)
				heraldtest.Equal(t, "the late record", heraldtest.Receive(t, "the late record", ended), "")
				return nil
			}}
		})
		must(next.deliver(t.Context(), id, again.Dispatch))
		heraldtest.Equal(t, "the status", w.row(id).Status, outcome.Delivered)
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})
}

// TestUnknownOutcomes: a delivery of unknown outcome is sent again with the same deliveryId, or held, according to the
// agent's policy.
func TestUnknownOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	died := func(t *testing.T, w *world, id uuid.UUID) ledger.Delivery {
		t.Helper()
		c := w.claim(id, 1)
		heraldtest.Must(t, w.store.Bind(t.Context(), c, ledger.Binding{Job: c.Job,
			Source: c.Source})) // precedes each call
		return w.expire(id)
	}

	w.run(t, "resent", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		again := died(t, w, id)
		w.newWorker().mustDeliver(id, again.Dispatch, "")
		w.shows(id, outcome.Delivered, "", 2)
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.run(t, "in the last attempt, which is not the agent's fault", func(t *testing.T, w *world) {
		a := newAgent(t)
		agent := w.register(at(a.URL))
		id := w.accept(w.feedback(agent))
		w.exec(`UPDATE herald.work SET budget_base = -3 WHERE id = $1`, id)
		again := died(t, w, id)
		_, _ = w.newWorker().deliver(t.Context(), id, again.Dispatch)
		heraldtest.Equal(t, "the history", len(w.shows(id, outcome.Dead, outcome.Unknown, 1).History), 1)
		heraldtest.Equal(t, "calls", len(a.received()), 0)
		if r := w.agentRow(agent); r.LastError != "" || r.FailingSince != nil {
			t.Errorf("agent %s: %s", r.State, r.LastError)
		}
	})

	w.run(t, "held until an operator decides", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		w.policy(id, policy.OnUnknownHold)
		again := died(t, w, id)
		k := w.newWorker()
		k.mustDeliver(id, again.Dispatch, "held held_unknown")
		w.shows(id, outcome.Held, outcome.HeldUnknown, 1)
		heraldtest.Equal(t, "calls", len(a.received()), 0)
		moved, left, tasks, err := w.store.Replay(t.Context(), []uuid.UUID{id}, false)
		if err != nil || moved != 1 || len(tasks) != 2 || !tasks[1].Ended {
			t.Fatal(moved, left, tasks, err)
		}
		k.mustDeliver(id, tasks[0].N, "")
		calls := a.received()
		if len(calls) != 1 {
			t.Fatalf("%d calls", len(calls))
		}
		if about, _ := calls[0].Meta[tools.MetaKey].(map[string]any); about["replay"] != true || about["attempt"] != 2.0 {
			t.Errorf("_meta %v", about)
		}
	})

	w.run(t, "a call that nobody answered is held too", func(t *testing.T, w *world) {
		a := newAgent(t, onCall(func(_ int, rw http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}))
		id := w.dispatchTo(a.URL)
		w.policy(id, policy.OnUnknownHold)
		w.newWorker().mustDeliver(id, 1, "held held_unknown")
		heraldtest.Equal(t, "the attempt's outcome", w.shows(id, outcome.Held, outcome.HeldUnknown, 1).History[0].Outcome,
			"held")
	})

	w.run(t, "an answer that says no is known", func(t *testing.T, w *world) {
		id := w.dispatchTo(newAgent(t, status(503)).URL)
		w.policy(id, policy.OnUnknownHold)
		w.newWorker().mustDeliver(id, 1, "waiting server_error")
	})
}

// TestReconcilerAfterPostgresWasLost: after an outage of Postgres or of its pooler, workers record their known outcomes
// before the reconciler acts.
func TestReconcilerAfterPostgresWasLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("Postgres", func(t *testing.T) { w.in(t).losePostgres(false) })
	t.Run("the pooler", func(t *testing.T) { w.in(t).losePostgres(true) })
}

// losePostgres lets the reconciler find Postgres unavailable, or only the pooler of the workers.
func (w *world) losePostgres(pooler bool) {
	t, now, fault := w.t, time.Now(), error(nil)
	s := w.newReconciler(func(c *maintenance.ReconcilerConfig) {
		c.Grace, c.Now = time.Minute, func() time.Time { return now }
		lost := &lossy{ReconcilerLedger: w.store, fault: func() error { return fault }}
		if pooler {
			lost.fault = func() error { return nil }
			c.Pooler = func(context.Context) error { return fault }
		}
		c.Ledger = lost
	})
	lease := func() uuid.UUID {
		id := w.dispatchTo(newAgent(t).URL)
		w.claim(id, 1)
		w.exec(`UPDATE herald.work SET lease_until = now() - interval '1 second' WHERE id = $1`, id)
		return id
	}
	round := func() error { return s.Round(heraldtest.Within(t, 20*time.Second)) }
	want := func(id uuid.UUID, status outcome.Status, when string) {
		t.Helper()
		heraldtest.Equal(t, "the status "+when, w.row(id).Status, status)
	}
	id := lease()
	heraldtest.Must(t, round())
	want(id, outcome.Queued, "with Postgres in its place")

	id = lease()
	fault = errAway
	heraldtest.Fails(t, "a round", round(), errAway)
	fault = nil
	for _, after := range []time.Duration{0, 30 * time.Second, 29 * time.Second} {
		now = now.Add(after)
		heraldtest.Must(t, round())
		want(id, outcome.Running, "too soon after Postgres was away")
	}
	now = now.Add(2 * time.Second)
	heraldtest.Must(t, round())
	want(id, outcome.Queued, "a minute later")
}

// lossy is a ledger whose clock can fail, and which reports an old start.
type lossy struct {
	maintenance.ReconcilerLedger
	fault func() error
}

func (l *lossy) Clock(ctx context.Context) (now, started time.Time, err error) {
	now, _, err = l.ReconcilerLedger.Clock(ctx)
	return now, now.Add(-time.Hour), errors.Join(err, l.fault())
}

// hastyLanes calls ran for each enqueued task, as if another worker had run the task at once.
type hastyLanes struct {
	dispatch.Lanes
	ran func(queue.Task)
}

func (l *hastyLanes) Enqueue(ctx context.Context, t queue.Task) error {
	l.ran(t)
	return l.Lanes.Enqueue(ctx, t)
}

// TestNextOutcomeStays: a worker that has recorded its spooled outcome deletes it before the delivery has a new task. So
// it does not delete the outcome of that task, which another worker has spooled.
func TestNextOutcomeStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun, finish := make(chan bool, 1), make(chan bool)
	first, second := w.dispatchTo(newAgent(t, silentUntil(begun, finish)).URL), w.dispatchTo(newAgent(t).URL)
	var failed atomic.Bool
	later := []byte("the next outcome")
	ran := make(chan bool, 1)
	lanes := &hastyLanes{w.queue, func(next queue.Task) {
		heraldtest.Equal(t, "the new task", next.ID(), queue.Task{DeliveryID: second, N: 2}.ID())
		heraldtest.Must(t, w.queue.Outcomes().Put(t.Context(), second.String(), later))
		ran <- true
	}}
	k := w.newWorker(func(c *Config) {
		c.Dispatcher = must(dispatch.New(lanes, w.logger()))
		c.Ledger = &faulty{Ledger: w.store, record: func(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
			if c.ID == second && !failed.Swap(true) {
				return ledger.Recorded{}, errAway
			}
			return w.store.Record(ctx, c, o)
		}}
	})
	k.runner = must(NewRunner(k.executor, w.intake, 1))
	called := k.goDeliver(first, 1)
	heraldtest.Receive(t, "the call that has the only slot", begun)
	waited := k.goDeliver(second, 1)
	heraldtest.Receive(t, "the new task of the delivery without a slot", ran)
	close(finish)
	heraldtest.Equal(t, "the end of the call", heraldtest.Receive(t, "the call", called), "")
	heraldtest.Equal(t, "the end of the old task", heraldtest.Receive(t, "the old task", waited), "no attempt")
	heraldtest.Equal(t, "the outcome in Redis", string(must(w.queue.Outcomes().Get(t.Context(), second.String()))), string(later))
}
