package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/slots"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/model"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// completerWorld is a runner on a store in memory, in a bubble. The test controls when agents answer and when records
// complete.
type completerWorld struct {
	*testing.T
	dispatch.Lanes // nil: only Enqueue is called
	ledger         *faulty
	base           *model.Store
	runner         *Runner

	accepted int

	mu      sync.Mutex
	claimed int

	calls    map[uuid.UUID]int
	agents   chan struct{}   // closed: agents answer; nil: they answer at once
	records  []chan struct{} // of the waiting records, in order of arrival; set with hold
	hold     bool            // records wait
	listing  time.Duration   // how long agents take to list their tools
	enqueued []queue.Task
	retried  atomic.Int64 // tasks that asynq must retry
	away     atomic.Bool  // claims fail from now on
	spooled  map[uuid.UUID]int
}

const (
	completerCall   = 10 * time.Second
	completerMargin = 20 * time.Second
)

// inCompleter runs a test in a bubble, with a runner with the given number of slots.
func inCompleter(t *testing.T, count int, run func(t *testing.T, w *completerWorld)) {
	t.Helper()
	t.Parallel()
	keys := must(secret.Create())
	metrics := must(NewMetrics(prometheus.NewRegistry()))
	synctest.Test(t, func(t *testing.T) {
		w := &completerWorld{T: t, base: model.New(time.Now), calls: map[uuid.UUID]int{}, spooled: map[uuid.UUID]int{}}
		w.ledger = &faulty{Ledger: w.base, claim: w.claim, record: w.record}
		executor := must(NewExecutor(Config{Ledger: w.ledger, Chain: func(uint64) (event.Chain, bool) { return nil, true },
			Verify: chain.VerifyOff, Resolver: w, Fetcher: panics{}, Caller: w, Keys: keys,
			Dispatcher: must(dispatch.New(w, quiet)), Spool: w, Schedule: must(outcome.NewSchedule([]time.Duration{time.Second})),
			CallTimeout: completerCall, Lease: completerCall + completerMargin, LeaseMargin: completerMargin,
			Metrics: metrics, Logger: quiet}))
		w.runner = must(NewRunner(executor, noIntake{}, count))
		run(t, w)
		w.runner.Wait(t.Context())
	})
}

type noIntake struct{}

func (noIntake) FromTask(context.Context, string, []byte) (string, error) { return "", nil }

func (w *completerWorld) claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away.Load() {
		return nil, errAway
	}
	c, err := w.base.Claim(ctx, id, n, lease)
	if c != nil {
		w.claimed++
	}
	return c, err
}

func (w *completerWorld) record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
	w.mu.Lock()
	wait := make(chan struct{})
	if w.hold {
		w.records = append(w.records, wait)
	} else {
		close(wait)
	}
	w.mu.Unlock()
	select {
	case <-wait:
		return w.base.Record(ctx, c, o)
	case <-ctx.Done():
		return ledger.Recorded{}, ctx.Err()
	}
}

func (w *completerWorld) Resolve(context.Context, resolver.Agent) (resolver.Target, error) {
	return resolver.Target{Transport: "http", URL: "https://agent.example/mcp", Binding: resolver.BoundByDomain}, nil
}

func (w *completerWorld) Tools(context.Context, mcpcall.Endpoint, bool) (mcpcall.ToolSet, error) {
	<-time.After(w.listing)
	return mcpcall.ToolSet{Tools: []mcpcall.Tool{{Name: "agent.receiveFeedback"}}}, nil
}

func (w *completerWorld) Call(ctx context.Context, _ mcpcall.Endpoint, r mcpcall.Request) (mcpcall.Answer, error) {
	id := uuid.MustParse(r.Meta[tools.MetaKey].(map[string]any)["id"].(string))
	w.mu.Lock()
	w.calls[id]++
	answer := w.agents
	w.mu.Unlock()
	if answer != nil {
		select {
		case <-answer:
		case <-ctx.Done():
			return mcpcall.Answer{}, &mcpcall.CallError{Stage: mcpcall.StageCall, Written: true, Timeout: true, Err: ctx.Err()}
		}
	}
	return says("thanks", false)()
}

func (w *completerWorld) Enqueue(_ context.Context, t queue.Task) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueued = append(w.enqueued, t)
	return nil
}

func (w *completerWorld) Put(_ context.Context, id string, _ []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spooled[uuid.MustParse(id)]++
	return nil
}
func (w *completerWorld) PutMissing(context.Context, string, []byte) error { return nil }
func (w *completerWorld) Get(context.Context, string) ([]byte, error)      { return nil, nil }
func (w *completerWorld) Delete(context.Context, string) error             { return nil }

// accept accepts n deliveries, each to an agent of its own.
func (w *completerWorld) accept(n int) []uuid.UUID {
	w.Helper()
	in := make([]ledger.Intake, n)
	ids := make([]uuid.UUID, n)
	for i := range in {
		w.accepted++
		j := storetest.Feedback(w.accepted, 1)
		j.FeedbackURI = ""
		in[i], ids[i] = ledger.Intake{Job: j}, j.ID()
	}
	if _, tasks, err := w.base.Accept(w.Context(), in); err != nil || len(tasks) != n {
		w.Fatal(len(tasks), err)
	}
	return ids
}

// deliverAll gives all tasks to the runner concurrently. ended returns for how many of them Deliver has returned.
func (w *completerWorld) deliverAll(ids []uuid.UUID) (ended func() int) {
	var n atomic.Int64
	for _, id := range ids {
		go func() {
			_, err := w.runner.Deliver(w.Context(), id, 1)
			if wait := new(queue.WaitError); errors.As(err, &wait) {
				w.retried.Add(1)
			}
			n.Add(1)
		}()
	}
	synctest.Wait()
	return func() int { return int(n.Load()) }
}

func (w *completerWorld) row(id uuid.UUID) ledger.Delivery {
	w.Helper()
	d, err := w.base.Delivery(w.Context(), id)
	heraldtest.Must(w, err)
	return d
}

// called returns how often a delivery's agent was called.
func (w *completerWorld) called(id uuid.UUID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[id]
}

// shows checks a delivery's status and how often its agent was called.
func (w *completerWorld) shows(id uuid.UUID, want outcome.Status, calls int) {
	w.Helper()
	if d := w.row(id); d.Status != want || w.called(id) != calls {
		w.Errorf("%s after %d calls, want %s after %d", d.Status, w.called(id), want, calls)
	}
}

// countReleased counts the deliveries that were claimed and released without an attempt.
func (w *completerWorld) countReleased(ids []uuid.UUID) (n int) {
	for _, id := range ids {
		if d := w.row(id); d.Status == outcome.Waiting && d.Attempts == 0 && w.called(id) == 0 {
			n++
		}
	}
	return n
}

// TestCompleterBounds: while no outcome can be recorded, a worker claims at most as many deliveries as it has slots,
// plus MaxBesideSlots. A delivery that finds no room in the completer keeps its slot. Afterwards all outcomes are
// recorded, the last one first.
func TestCompleterBounds(t *testing.T) {
	const count, deliveries = 4, 200
	inCompleter(t, count, func(t *testing.T, w *completerWorld) {
		w.hold = true
		ids := w.accept(deliveries)
		ended := w.deliverAll(ids)
		ahead := slots.ClaimsAhead(count)
		room := slots.MaxBesideSlots - ahead
		if w.claimed != count+slots.MaxBesideSlots || len(w.calls) != count+room || len(w.records) != room || ended() != room {
			t.Errorf("%d claimed, %d called, %d records wait, asynq was told of %d; want %d, %d, %d and %d", w.claimed, len(w.calls),
				len(w.records), ended(), count+slots.MaxBesideSlots, count+room, room, room)
		}
		heraldtest.Equal(t, "running", w.runner.Running(), count+slots.MaxBesideSlots)

		for waiting := w.records; len(waiting) > 0; {
			w.mu.Lock()
			w.records = nil
			w.mu.Unlock()
			for _, let := range slices.Backward(waiting) {
				close(let)
			}
			synctest.Wait()
			w.mu.Lock()
			waiting = w.records
			w.mu.Unlock()
		}
		for _, id := range ids {
			w.shows(id, outcome.Delivered, 1)
		}
		if w.runner.Running() != 0 || ended() != deliveries {
			t.Errorf("%d run, asynq was told of %d", w.runner.Running(), ended())
		}
		c := w.runner.slots
		claims, used, records := c.Count()
		heraldtest.Equal(t, "places are not given back", claims+used+records, 0)
	})
}

// TestCompleterGuards: a delivery whose record is pending stays with this process until it is recorded, also if asynq
// runs its task again.
func TestCompleterGuards(t *testing.T) {
	inCompleter(t, 2, func(t *testing.T, w *completerWorld) {
		w.hold = true
		id := w.accept(1)[0]
		heraldtest.Equal(t, "the note", must(w.runner.Deliver(t.Context(), id, 1)), "")
		synctest.Wait()
		heraldtest.Equal(t, "the status", w.row(id).Status, outcome.Running)
		for n := range 2 { // asynq considers the task lost, or a newer task exists
			if _, err := w.runner.Deliver(t.Context(), id, n+1); err == nil || errors.Is(err, queue.ErrDropped) {
				t.Errorf("task %d is used up while the record waits: %v", n+1, err)
			}
		}
		close(w.records[0])
		synctest.Wait()
		_, err := w.runner.Deliver(t.Context(), id, 1)
		heraldtest.Fails(t, "after the record", err, queue.ErrDropped)
		heraldtest.Equal(t, "calls", w.called(id), 1)
	})
}

// TestNoCallBeginsLateInAStop: a worker that stops begins no call whose end it might not wait for.
func TestNoCallBeginsLateInAStop(t *testing.T) {
	inCompleter(t, 2, func(t *testing.T, w *completerWorld) {
		ids := w.accept(2)
		for i, after := range []time.Duration{callsAfterStop, callsAfterStop + time.Second} {
			stopped := time.Now().Add(-after)
			w.runner.executor.stopped.Store(&stopped)
			_, err := w.runner.Deliver(t.Context(), ids[i], 1)
			if wait, isFree := errors.AsType[*queue.WaitError](err); w.called(ids[i]) != 1-i || isFree != (i == 1) || isFree && !wait.Free {
				t.Errorf("%s after the stop: %d calls, %v", after, w.called(ids[i]), err)
			}
		}
	})
}

// TestCompleterShutdown: Wait waits for pending records, including those of tasks that asynq considers done. After
// Wait's deadline, outcomes that Postgres does not accept are spooled in Redis.
func TestCompleterShutdown(t *testing.T) {
	inCompleter(t, 2, func(t *testing.T, w *completerWorld) {
		w.hold = true
		ids := w.accept(2)
		w.deliverAll(ids)
		w.runner.StopClaiming()
		ctx, giveUp := context.WithCancel(t.Context())
		waited := make(chan struct{})
		go func() { w.runner.Wait(ctx); close(waited) }()

		close(w.records[0])
		synctest.Wait()
		select {
		case <-waited:
			t.Fatal("it did not wait for the second record")
		default:
		}
		giveUp() // the present try ends by itself
		<-waited
		if w.runner.Running() != 0 || len(w.spooled) != 1 {
			t.Errorf("%d run, %d are in Redis", w.runner.Running(), len(w.spooled))
		}
		for _, id := range ids {
			want := outcome.Delivered
			if w.spooled[id] > 0 {
				want = outcome.Running // until its lease expires
			}
			w.shows(id, want, 1)
		}
	})
}

// TestCompleterPanics: a record that panics releases its room, its slot, and the mark of its delivery.
func TestCompleterPanics(t *testing.T) {
	inCompleter(t, 2, func(t *testing.T, w *completerWorld) {
		ids := w.accept(3*slots.MaxBesideSlots + 1)
		w.ledger.record = func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) { panic("boom") }
		for _, id := range ids[1:] {
			heraldtest.Equal(t, "the note", must(w.runner.Deliver(t.Context(), id, 1)), "")
		}
		synctest.Wait()
		w.ledger.record = w.record
		w.deliverAll(ids[:1])
		w.shows(ids[0], outcome.Delivered, 1)
		heraldtest.Equal(t, "running", w.runner.Running(), 0)
	})
}

// TestClaimsAhead: while agents use all slots, the worker claims only a few deliveries ahead. When the worker stops, it
// releases them, and they cost no attempt.
func TestClaimsAhead(t *testing.T) {
	const count = 4
	ahead := slots.ClaimsAhead(count)
	for name, end := range map[string]func(*completerWorld){
		"the worker stops":     func(w *completerWorld) { w.runner.StopClaiming() },
		"the process gives up": func(w *completerWorld) { w.runner.stop(errShutdown) },
	} {
		t.Run(name, func(t *testing.T) {
			inCompleter(t, count, func(t *testing.T, w *completerWorld) {
				w.agents, w.listing = make(chan struct{}), completerCall/2 // an attempt takes longer than its call
				ids := w.accept(count)
				w.deliverAll(ids) // they use all slots
				late := w.accept(3 * ahead)
				ended := w.deliverAll(late)
				if w.claimed != count+ahead || ended() != 0 {
					t.Fatalf("%d claimed, %d ended", w.claimed, ended())
				}
				w.away.Store(true)
				end(w)
				synctest.Wait()
				for _, id := range late {
					if d := w.row(id); d.Attempts != 0 || w.called(id) != 0 {
						t.Errorf("%s after %d calls and %d attempts", d.Status, w.called(id), d.Attempts)
					}
				}
				back := w.countReleased(late)
				if back != ahead || ended() != len(late) {
					t.Errorf("%d were given back and %d ended; want %d and %d", back, ended(), ahead, len(late))
				}
				w.mu.Lock()
				tasks := len(w.enqueued) + int(w.retried.Load())
				w.mu.Unlock()
				if tasks < back {
					t.Errorf("%d tasks for %d that were given back", tasks, back)
				}
				close(w.agents)
				w.runner.Wait(t.Context())
			})
		})
	}
}

// TestSlowAgentsEndClaimsAhead: while calls are slow, a worker releases its claims ahead and claims at most as many
// deliveries as it has slots. When calls are fast, it claims ahead again.
func TestSlowAgentsEndClaimsAhead(t *testing.T) {
	const count = 4
	ahead := slots.ClaimsAhead(count)
	inCompleter(t, count, func(t *testing.T, w *completerWorld) {
		w.agents = make(chan struct{})
		ids := w.accept(count + 4*ahead)
		w.deliverAll(ids[:count]) // they use all slots
		ended := w.deliverAll(ids[count:])

		<-time.After(slots.Timeout)
		synctest.Wait()
		back := w.countReleased(ids)
		<-time.After(completerCall / 2)
		synctest.Wait()
		if back != ahead || ended() != 0 || w.claimed != count+ahead {
			t.Errorf("%d were given back, %d claimed and %d ended; want %d, %d and none", back, w.claimed, ended(), ahead, count+ahead)
		}

		close(w.agents) // from now on they answer at once
		synctest.Wait()
		delivered := 0
		for _, id := range ids {
			if w.row(id).Status == outcome.Delivered && w.called(id) == 1 {
				delivered++
			}
		}
		claims, _, _ := w.runner.slots.Count()
		if delivered != len(ids)-ahead || ended() != 4*ahead || claims != 0 {
			t.Errorf("%d are delivered, %d ended, %d rights to claim are kept; want %d, %d and none", delivered, ended(),
				claims, len(ids)-ahead, 4*ahead)
		}
	})
}
