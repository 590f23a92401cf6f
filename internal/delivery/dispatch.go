package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Lanes is the part of package queue that the Dispatcher uses.
type Lanes interface {
	Enqueue(ctx context.Context, t queue.Task) error
	Find(t queue.Task) (queue.Location, error)
	Marker(ctx context.Context, now time.Time) (time.Time, error)
	Drop(ctx context.Context, tasks []queue.Task) error
	DropArchived(ctx context.Context, id uuid.UUID, n int) error
}

const (
	enqueueTimeout  = 5 * time.Second  // one task
	dispatchTimeout = 30 * time.Second // one Dispatch
)

// Dispatcher enqueues dispatched deliveries in Redis. A delivery whose task Redis did not accept stays dispatched in
// Postgres, and the reconciler (internal/delivery/maintenance) finds it. So losing Redis costs time, but no delivery.
type Dispatcher struct {
	lanes Lanes
	log   *slog.Logger
}

// NewDispatcher returns a Dispatcher. If log is nil, it uses slog.Default().
func NewDispatcher(lanes Lanes, log *slog.Logger) (*Dispatcher, error) {
	if lanes == nil {
		return nil, errors.New("delivery: a dispatcher needs lanes")
	}
	if log == nil {
		log = slog.Default()
	}
	return &Dispatcher{lanes, log}, nil
}

// Dispatch enqueues tasks in Redis, and removes there those with Ended. It stops at the first task that Redis does not
// accept, and returns how many tasks precede that one. It ignores a cancelled ctx, because the dispatch is committed
// already, but takes at most dispatchTimeout.
func (d *Dispatcher) Dispatch(ctx context.Context, tasks []store.Task) int {
	if len(tasks) == 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dispatchTimeout)
	defer cancel()
	d.dropEnded(ctx, tasks)
	for i, t := range tasks {
		if t.Ended {
			continue
		}
		one, done := context.WithTimeout(ctx, enqueueTimeout)
		err := d.lanes.Enqueue(one, queueTask(t))
		done()
		if err != nil {
			d.log.Warn("Redis does not accept tasks; they are dispatched again when it does",
				logging.About(logging.Redis), "tasks", len(tasks)-i, "error", err)
			return i
		}
	}
	return len(tasks)
}

// dropEnded removes the tasks with Ended from Redis, so that the web UI does not show them.
func (d *Dispatcher) dropEnded(ctx context.Context, tasks []store.Task) {
	var ended []queue.Task
	for _, t := range tasks {
		if t.Ended {
			ended = append(ended, queueTask(t))
		}
	}
	if len(ended) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	if err := d.lanes.Drop(ctx, ended); err != nil {
		d.log.Info("tasks stay in the web UI, though their deliveries go on without them", logging.About(logging.Redis),
			"tasks", len(ended), "error", err)
	}
}

// DropArchived removes the archived tasks of a delivery with numbers below n from Redis: tasks that dropEnded could not
// remove. If Redis fails, they stay in the web UI until asynq deletes them; nothing depends on them.
func (d *Dispatcher) DropArchived(ctx context.Context, id uuid.UUID, n int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout)
	defer cancel()
	if err := d.lanes.DropArchived(ctx, id, n); err != nil {
		d.log.Info("an archived task stays in the web UI, although its delivery continued", logging.About(logging.Redis),
			"delivery", id, "error", err)
	}
}

// FindTask returns where Redis has a task: in which state, or nowhere.
func (d *Dispatcher) FindTask(t store.Task) (queue.Location, error) {
	return d.lanes.Find(queueTask(t))
}

// RedisMarker returns the time since which this Redis has kept Herald's tasks: tasks that were enqueued before it are
// lost. If Redis has no marker yet, it stores now as the marker and returns it.
func (d *Dispatcher) RedisMarker(ctx context.Context, now time.Time) (time.Time, error) {
	return d.lanes.Marker(ctx, now)
}

// queueTask converts a task for Redis and chooses its lane: replays and backfills come after all others, and later
// attempts do not delay first ones.
func queueTask(t store.Task) queue.Task {
	lane := queue.First
	switch {
	case t.Bulk:
		lane = queue.Bulk
	case t.Attempts > 0:
		lane = queue.Retry
	}
	return queue.Task{DeliveryID: t.ID, N: t.N, Kind: t.Kind, Lane: lane, At: t.At}
}
