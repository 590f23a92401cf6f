package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// faulty is a ledger that can fail before or after the call to the real one.
type faulty struct {
	Ledger
	claim  func(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error)
	extend func(ctx context.Context, c *ledger.Claim, d time.Duration) error
	record func(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error)
}

func (f *faulty) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error) {
	if f.claim != nil {
		return f.claim(ctx, id, n, lease)
	}
	return f.Ledger.Claim(ctx, id, n, lease)
}

func (f *faulty) Extend(ctx context.Context, c *ledger.Claim, d time.Duration) error {
	if f.extend != nil {
		return f.extend(ctx, c, d)
	}
	return f.Ledger.Extend(ctx, c, d)
}

func (f *faulty) Record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
	if f.record != nil {
		return f.record(ctx, c, o)
	}
	return f.Ledger.Record(ctx, c, o)
}

// dispatchTo accepts a feedback for an agent at url and returns the delivery. No server runs its task 1.
func (w *world) dispatchTo(url string) uuid.UUID {
	w.t.Helper()
	return w.accept(w.feedback(w.register(at(url))))
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	must(w.connect().Exec(heraldtest.Within(w.t, 10*time.Second), sql, args...))
}

// connect returns a connection to Postgres, which is closed when the test ends.
func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn := must(pgx.Connect(heraldtest.Within(w.t, 20*time.Second), w.dbURL))
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestFaults runs tasks by hand, all in one world without a server.
func TestFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	w.run(t, "a task is run once", func(t *testing.T, w *world) {
		a := newAgent(t)
		k := w.newWorker()
		id := w.dispatchTo(a.URL)
		for _, n := range []int{0, 2, -1} {
			k.mustDeliver(id, n, "no attempt")
		}
		k.mustDeliver(uuid.New(), 1, "no attempt")
		k.mustDeliver(id, 1, "")
		k.mustDeliver(id, 1, "no attempt")
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.run(t, "asynq's context does not reach the call, and shutdown waits for it", func(t *testing.T, w *world) {
		begun, finish := make(chan bool, 1), make(chan bool)
		a := newAgent(t, silentUntil(begun, finish))
		k := w.newWorker()
		id := w.dispatchTo(a.URL)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan string)
		go func() {
			note, err := k.deliver(ctx, id, 1)
			done <- fmt.Sprint(note, err)
		}()
		heraldtest.Receive(t, "the call", begun)
		cancel() // Redis freezes

		// The task arrives again while its first run continues, and so does a newer task.
		for n := range 2 {
			if note, err := k.deliver(t.Context(), id, n+1); err == nil {
				t.Errorf("task %d is used up while the delivery runs: %s", n+1, note)
			}
		}
		heraldtest.Equal(t, "running", k.runner.Running(), 1)
		waited := make(chan bool)
		go func() { k.runner.Wait(heraldtest.Within(t, 20*time.Second)); close(waited) }()
		select {
		case <-waited:
			t.Error("the shutdown did not wait for the call")
		default:
		}
		close(finish)
		heraldtest.Equal(t, "the end", heraldtest.Receive(t, "the end", done), "<nil>")
		heraldtest.Receive(t, "Wait", waited)
		w.shows(id, outcome.Delivered, "", 1)
	})

	w.run(t, "shutdown that waited long enough cuts the call off and records it", func(t *testing.T, w *world) {
		begun := make(chan bool, 1)
		a := newAgent(t, silentUntil(begun, nil))
		k := w.newWorker()
		id := w.dispatchTo(a.URL)
		go k.runner.Deliver(context.WithoutCancel(t.Context()), id, 1)
		heraldtest.Receive(t, "the call", begun)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		k.runner.Wait(ctx)
		w.shows(id, outcome.Waiting, outcome.Unknown, 1)
	})

	w.run(t, "what Postgres will never take is recorded without the strangers' part", func(t *testing.T, w *world) {
		k := w.newWorker(func(c *Config) {
			c.Ledger = &faulty{Ledger: w.store, record: func(ctx context.Context, cl *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
				if o.Response != nil {
					return ledger.Recorded{}, fmt.Errorf("record: %w", &pgconn.PgError{Code: "22P05", Message: "unsupported Unicode escape sequence"})
				}
				return w.store.Record(ctx, cl, o)
			}}
		})
		id := w.dispatchTo(newAgent(t).URL)
		k.mustDeliver(id, 1, "")
		if d := w.until(id, outcome.Delivered); d.History[0].Response != nil || d.History[0].Outcome != "delivered" {
			t.Errorf("%+v", d.History)
		}
	})

	w.run(t, "what Postgres takes in no form does not hold the slot", func(t *testing.T, w *world) {
		k := w.newWorker(func(c *Config) {
			c.Ledger = &faulty{Ledger: w.store, record: func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) {
				return ledger.Recorded{}, &pgconn.PgError{Code: "23514"}
			}}
		})
		id := w.dispatchTo(newAgent(t).URL)
		k.mustDeliver(id, 1, "")
		if d := w.row(id); d.Status != outcome.Running || k.runner.Running() != 0 || w.log.Count("not_recorded") == 0 {
			t.Errorf("%s, %d run; the log: %s", d.Status, k.runner.Running(), w.log.String()) // its lease expires
		}
	})

	w.run(t, "two connections to Postgres are enough", func(t *testing.T, w *world) {
		few := must(store.Open(postgres.Config{URL: secret.New(w.dbURL), MaxConns: 2}))
		defer few.Close()
		a := newAgent(t)
		k := w.newWorker(func(c *Config) { c.Ledger = few })
		var ids []uuid.UUID
		for range 24 {
			ids = append(ids, w.dispatchTo(a.URL))
		}
		heraldtest.Await(t, "all are delivered", func() bool {
			var all sync.WaitGroup
			for _, id := range ids {
				d := w.row(id)
				if d.Status == outcome.Delivered {
					continue
				}
				// A task without a free slot is put back, and the delivery waits for its next task.
				all.Go(func() { _, _ = k.runner.Deliver(t.Context(), id, d.Dispatch) })
			}
			all.Wait()
			return !slices.ContainsFunc(ids, func(id uuid.UUID) bool { return w.row(id).Status != outcome.Delivered })
		})
		k.runner.Wait(t.Context())
	})

	w.run(t, "a worker that lost its claim changes nothing", func(t *testing.T, w *world) {
		a := newAgent(t, breaksWhile(500, func() bool {
			w.exec(`UPDATE herald.work SET claim_no = nextval('herald.claim_no')`)
			return true
		}))
		k := w.newWorker()
		id := w.dispatchTo(a.URL)
		k.mustDeliver(id, 1, "no attempt")
		heraldtest.Equal(t, "the status", w.row(id).Status, outcome.Running)
	})

	w.run(t, "a step that panics", func(t *testing.T, w *world) {
		k := w.newWorker(func(c *Config) { c.Fetcher = panics{} })
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(newAgent(t).URL)), URI: "ipfs://x"})
		id := w.accept(j)
		k.mustDeliver(id, 1, "waiting internal_error")
		heraldtest.Equal(t, "the stage", w.shows(id, outcome.Waiting, outcome.InternalError, 1).History[0].Stage, "fetch")
		heraldtest.Equal(t, "running", k.runner.Running(), 0)
	})

	w.run(t, "a call that panics may have reached the agent", func(t *testing.T, w *world) {
		k := w.newWorker(func(c *Config) { c.Caller = callPanics{c.Caller} })
		id := w.dispatchTo(newAgent(t).URL)
		w.policy(id, policy.OnUnknownHold)
		k.mustDeliver(id, 1, "held held_unknown")
	})

	type claimer func(context.Context, uuid.UUID, int, time.Duration) (*ledger.Claim, error)
	for name, claim := range map[string]claimer{
		"a ledger that panics": func(context.Context, uuid.UUID, int, time.Duration) (*ledger.Claim, error) {
			panic("boom")
		},
		"Postgres is away at the claim": func(context.Context, uuid.UUID, int, time.Duration) (*ledger.Claim, error) {
			return nil, errAway
		},
	} {
		w.run(t, name, func(t *testing.T, w *world) {
			k := w.newWorker(func(c *Config) { c.Ledger = &faulty{Ledger: w.store, claim: claim} })
			_, err := k.deliver(t.Context(), uuid.New(), 1)
			if err == nil || k.runner.Running() != 0 { // the task is not used up
				t.Errorf("%v, %d run", err, k.runner.Running())
			}
		})
	}

	w.run(t, "a job that cannot be read any more", func(t *testing.T, w *world) {
		id := w.dispatchTo(newAgent(t).URL)
		w.exec(`UPDATE herald.deliveries SET job = '{"type": 7}' WHERE id = $1`, id)
		k := w.newWorker()
		if _, err := k.deliver(t.Context(), id, 1); err == nil {
			t.Error("a rejected task is not archived")
		}
		w.shows(id, outcome.Rejected, outcome.InvalidJob, 1)
	})
}

// callPanics panics after the agent has received the call.
type callPanics struct{ Caller }

func (c callPanics) Call(ctx context.Context, e mcpcall.Endpoint, r mcpcall.Request) (mcpcall.Answer, error) {
	_, _ = c.Caller.Call(ctx, e, r)
	panic("boom")
}

// panics is a fetcher that panics.
type panics struct{}

func (panics) Fetch(context.Context, string, int64) (ipfs.Document, error)     { panic("boom") }
func (panics) FetchAnew(context.Context, string, int64) (ipfs.Document, error) { panic("boom") }
