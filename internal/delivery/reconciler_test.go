package delivery

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
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
	cfg := maintenance.RetentionConfig{Ledger: w.store, OldData: retention.New(w.store.Pool), Logger: w.logger()}
	for _, a := range adapt {
		a(&cfg)
	}
	return must(maintenance.NewRetention(cfg))
}

func (w *world) reconcile(s *maintenance.Reconciler) {
	w.t.Helper()
	heraldtest.Must(w.t, s.Round(heraldtest.Within(w.t, 20*time.Second)))
}

func (w *world) flush() {
	w.t.Helper()
	heraldtest.Must(w.t, heraldtest.RedisClient(w.t, w.redisURL).FlushAll(heraldtest.Within(w.t, 10*time.Second)).Err())
}

// lost is a Redis that reports the same location for each task.
type lost struct {
	dispatch.Lanes
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
	d := must(dispatch.New(redis, w.logger()))
	s := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Dispatcher = d })
	w.reconcile(s)
	heraldtest.Equal(t, "tasks for one that runs", len(redis.put), 0)
	w.exec(`UPDATE herald.work SET handed_at = now() - interval '6 minutes' WHERE id = $1`, id)
	w.reconcile(s)
	if len(redis.put) != 1 || redis.put[0].N != 2 {
		t.Fatalf("%+v", redis.put)
	}
	redis.err = errors.New("Redis is away")
	heraldtest.Fails(t, "a round that cannot look", s.Round(heraldtest.Within(t, 10*time.Second)))
	heraldtest.Equal(t, "tasks", len(redis.put), 1)
}

// TestMarkerOfFastClock: a machine whose clock is ahead marks an empty Redis with a time to come. The reconciler
// replaces each task once, not again and again until that time.
func TestMarkerOfFastClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := []uuid.UUID{w.dispatchTo(newAgent(t).URL), w.dispatchTo(newAgent(t).URL), w.dispatchTo(newAgent(t).URL)}
	w.flush()
	must(w.queue.Marker(t.Context(), time.Now().Add(time.Hour)))
	s := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Batch, c.Late = 2, time.Minute })
	for range 2 {
		w.reconcile(s)
	}
	for _, id := range ids {
		heraldtest.Equal(t, "dispatches", w.row(id).Dispatch, 2)
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
	heraldtest.Equal(t, "dispatches, of two reconcilers", w.row(id).Dispatch, 2)
	once, stop := context.WithCancel(t.Context())
	defer stop()
	s := w.newRetention(func(c *maintenance.RetentionConfig) { c.Interval = 10 * time.Millisecond })
	go func() { s.Run(once); ended <- true }()
	w.until(id, outcome.Dead)
	stop()
	heraldtest.Receive(t, "the loop's end", ended)
	heraldtest.Equal(t, "the reason", w.row(id).Reason, outcome.Expired)
}
