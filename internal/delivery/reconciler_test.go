package delivery

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

func (w *world) newReconciler(adapt ...func(*maintenance.ReconcilerConfig)) *maintenance.Reconciler {
	w.t.Helper()
	cfg := maintenance.ReconcilerConfig{Ledger: w.store, Dispatcher: w.dispatcher, Attempts: 4, Logger: w.logger(),
		Late: time.Microsecond, Grace: -1, Chains: []uint64{w.net.ChainID()}}
	for _, a := range adapt {
		a(&cfg)
	}
	return must(maintenance.NewReconciler(cfg))
}

func (w *world) newRetention(adapt ...func(*maintenance.RetentionConfig)) *maintenance.Retention {
	w.t.Helper()
	cfg := maintenance.RetentionConfig{Ledger: w.store, Logger: w.logger()}
	for _, a := range adapt {
		a(&cfg)
	}
	return must(maintenance.NewRetention(cfg))
}

func (w *world) reconcile(s *maintenance.Reconciler) {
	w.t.Helper()
	if err := s.Reconcile(heraldtest.Within(w.t, 20*time.Second)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) flush() {
	w.t.Helper()
	o, err := redis.ParseURL(w.redisURL)
	if err != nil { // redis-socket
		o = &redis.Options{Network: "unix", Addr: w.redisURL[len("redis-socket://"):]}
	}
	c := redis.NewClient(o)
	defer c.Close()
	if err := c.FlushAll(heraldtest.Within(w.t, 10*time.Second)).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// TestReconcilerFindsLostTasks: the loss of Redis' data delays deliveries, and loses none.
func TestReconcilerFindsLostTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	s := w.newReconciler()
	id := w.dispatchTo(a.URL)

	// Tasks that Redis still has are not replaced, after any number of rounds.
	for range 3 {
		w.reconcile(s)
	}
	if d := w.row(id); d.Dispatch != 1 {
		t.Fatalf("a waiting task was dispatched again: dispatch %d", d.Dispatch)
	}

	w.flush()
	w.reconcile(s)
	if d := w.row(id); d.Dispatch != 2 || d.Status != store.Queued {
		t.Fatalf("%s, dispatch %d", d.Status, d.Dispatch)
	}
	if p, err := w.queue.Find(queue.Task{DeliveryID: id, N: 2, Lane: queue.First}); err != nil || p != queue.Pending {
		t.Fatalf("%d, %v", p, err)
	}
	w.reconcile(s)
	if d := w.row(id); d.Dispatch != 2 {
		t.Errorf("dispatched a third time")
	}
	w.serve(w.newWorker())
	w.until(id, store.Delivered)
	if n := len(a.received()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestLongQueue: of a flood for one agent, all but eight deliveries stay in Postgres. They are not dispatched again and
// again while they wait.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	agentID := w.register(at(a.URL))
	var ids []uuid.UUID
	for range 20 {
		j, _ := w.rate(devnet.Feedback{AgentID: agentID})
		ids = append(ids, w.accept(j))
	}
	s := w.newReconciler()
	for range 3 {
		w.reconcile(s)
	}
	handed := 0
	for _, id := range ids {
		handed += w.row(id).Dispatch
	}
	if handed != store.MaxDispatchedPerAgent {
		t.Errorf("%d dispatches, want %d", handed, store.MaxDispatchedPerAgent)
	}
	lanes := must(w.queue.Lanes())
	if lanes[queue.First]["pending"] != store.MaxDispatchedPerAgent {
		t.Errorf("%v", lanes)
	}
	w.serve(w.newWorker())
	for _, id := range ids {
		if d := w.until(id, store.Delivered); d.Dispatch != 1 {
			t.Errorf("%s was dispatched %d times", id, d.Dispatch)
		}
	}
	if n := len(a.received()); n != 20 {
		t.Errorf("%d calls", n)
	}
}

// lost is a Redis that reports the same location for each task.
type lost struct {
	Lanes
	location queue.Location
	err      error
	put      []queue.Task
}

func (l *lost) Find(queue.Task) (queue.Location, error) { return l.location, l.err }

func (l *lost) Marker(context.Context, time.Time) (time.Time, error) { return time.Time{}, nil }

func (l *lost) Enqueue(_ context.Context, t queue.Task) error {
	l.put = append(l.put, t)
	return nil
}

func TestReconcilerAndTasksThatRunForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.dispatchTo(newAgent(t).URL)
	redis := &lost{location: queue.Active}
	d := must(NewDispatcher(redis, w.logger()))
	s := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Dispatcher = d })
	w.reconcile(s)
	if len(redis.put) != 0 {
		t.Fatal("a task that runs was dispatched again")
	}
	w.exec(`UPDATE herald.deliveries SET handed_at = now() - interval '6 minutes' WHERE id = $1`, id)
	w.reconcile(s)
	if len(redis.put) != 1 || redis.put[0].N != 2 {
		t.Fatalf("%+v", redis.put)
	}
	redis.err = errors.New("Redis is away")
	if err := s.Reconcile(heraldtest.Within(t, 10*time.Second)); err == nil {
		t.Error("not being able to look counts as lost")
	}
	if len(redis.put) != 1 {
		t.Errorf("%+v", redis.put)
	}
}

func TestHeldForWantOfAChain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	id := w.dispatchTo(a.URL)
	k := w.newWorker()
	delete(k.chains, w.net.ChainID())
	if _, err := k.deliver(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	if d := w.row(id); d.Status != store.Held || d.Reason != "chain_unconfigured" || d.Attempts != 0 {
		t.Fatalf("%s %s after %d attempts", d.Status, d.Reason, d.Attempts)
	}
	// A job that names its endpoint needs no chain.
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(nil)})
	other := w.accept(with(j, own(a.URL, nil)))
	if note, err := k.deliver(t.Context(), other, 1); err != nil || note != "" {
		t.Fatalf("%q, %v", note, err)
	}

	w.reconcile(w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Chains = []uint64{1} }))
	if d := w.row(id); d.Status != store.Held {
		t.Fatalf("%s by a worker that has not that chain either", d.Status)
	}
	w.reconcile(w.newReconciler())
	w.serve(w.newWorker())
	w.until(id, store.Delivered)
}

// TestLongWaits: a wait that is too long for Redis stays in Postgres until it is due.
func TestLongWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	id := w.dispatchTo(a.URL)
	c, err := w.store.Claim(t.Context(), id, 1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Record(t.Context(), c, store.Outcome{Status: store.Waiting, Reason: "server_error", Delay: time.Hour, Stage: "call"}); err != nil {
		t.Fatal(err)
	}
	s := w.newReconciler()
	w.reconcile(s)
	if d := w.row(id); d.Dispatch != 1 {
		t.Fatalf("dispatch %d", d.Dispatch)
	}
	w.exec(`UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, id)
	w.reconcile(s)
	if p, err := w.queue.Find(queue.Task{DeliveryID: id, N: 2, Lane: queue.Retry}); err != nil || p != queue.Pending {
		t.Fatalf("%d, %v", p, err)
	}
	w.serve(w.newWorker())
	w.until(id, store.Delivered)
}

// TestLeasesEnd: a delivery that always crashes its worker ends.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.dispatchTo(newAgent(t).URL)
	s := w.newReconciler()
	for n := 1; n <= 4; n++ {
		c, err := w.store.Claim(t.Context(), id, n, time.Minute)
		if c == nil || err != nil {
			t.Fatalf("claim %d: %v, %v", n, c, err)
		}
		w.exec(`UPDATE herald.deliveries SET lease_until = now() - interval '1 second' WHERE id = $1`, id)
		w.reconcile(s)
	}
	if d := w.row(id); d.Status != store.Dead || d.Reason != "outcome_unknown" {
		t.Errorf("%s %s after %d attempts", d.Status, d.Reason, d.Attempts)
	}
}

// TestMaintenanceRuns: the loops run a round at once and then periodically, in one of several processes.
func TestMaintenanceRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.dispatchTo(newAgent(t).URL)
	w.flush()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	for range 2 {
		s := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Interval = 10 * time.Millisecond })
		go func() { s.Run(ctx); ended <- true }()
	}
	heraldtest.AwaitState(t, func() bool { return w.row(id).Dispatch >= 2 }, func() string { return "nothing was reconciled" })
	w.exec(`UPDATE herald.deliveries SET created_at = now() - interval '40 days', accepted_at = now() - interval '40 days' WHERE id = $1`, id)
	cancel()
	for range 2 {
		heraldtest.Receive(t, "the loop's end", ended)
	}
	if d := w.row(id); d.Dispatch != 2 {
		t.Errorf("two reconcilers dispatched it %d times", d.Dispatch-1)
	}
	once, stop := context.WithCancel(t.Context())
	defer stop()
	s := w.newRetention(func(c *maintenance.RetentionConfig) { c.Interval = 10 * time.Millisecond })
	go func() { s.Run(once); ended <- true }()
	w.until(id, store.Dead)
	stop()
	heraldtest.Receive(t, "the loop's end", ended)
	if d := w.row(id); d.Reason != "expired" {
		t.Errorf("%s", d.Reason)
	}
}
