// Package dispatch enqueues the tasks of deliveries that Postgres has dispatched. It connects store with queue.
package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
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
	enqueueTimeout  = 5 * time.Second  // for adding one task, and for one removal of tasks
	dispatchTimeout = 30 * time.Second // for all tasks of one Dispatch
)

// Dispatcher enqueues in Redis the tasks that the store returned for dispatched deliveries. If Redis does not accept a
// task, its delivery stays dispatched in Postgres, and the reconciler (internal/delivery/maintenance) gives it a new
// task later. So if Redis fails, deliveries are late, but none is lost.
type Dispatcher struct {
	lanes Lanes
	log   *slog.Logger
}

// New returns a Dispatcher. It returns an error if lanes is nil. If log is nil, the Dispatcher uses slog.Default().
func New(lanes Lanes, log *slog.Logger) (*Dispatcher, error) {
	if lanes == nil {
		return nil, errors.New("dispatch: a dispatcher needs lanes")
	}
	if log == nil {
		log = slog.Default()
	}
	return &Dispatcher{lanes, log}, nil
}

// Dispatch first removes from Redis the tasks whose ledger.Task.Ended is set, which their deliveries no longer need. It
// then enqueues the others in order. It stops at the first task that Redis does not accept, and returns the index of
// that task, or len(tasks). Postgres has already committed the dispatch. So Dispatch continues after the end of ctx,
// for at most dispatchTimeout.
func (d *Dispatcher) Dispatch(ctx context.Context, tasks []ledger.Task) int {
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
		err := d.lanes.Enqueue(one, ToQueue(t))
		done()
		if err != nil {
			d.log.Warn("Redis does not accept tasks; they are dispatched again when it does",
				logging.About(logging.Redis), "tasks", len(tasks)-i, "error", err)
			return i
		}
	}
	return len(tasks)
}

// dropEnded removes the tasks whose Ended is set from Redis, so that the web UI does not show them. If Redis fails, it
// logs the error, and the tasks stay in Redis.
func (d *Dispatcher) dropEnded(ctx context.Context, tasks []ledger.Task) {
	var ended []queue.Task
	for _, t := range tasks {
		if t.Ended {
			ended = append(ended, ToQueue(t))
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

// DropArchived removes from Redis the archived tasks of the delivery with this id whose dispatch counter (Task.N) is
// below n. The delivery no longer needs these tasks, but dropEnded did not remove them if Redis failed, or if asynq
// archived them later. If Redis fails again, the only effect is that the web UI shows them until asynq deletes them.
func (d *Dispatcher) DropArchived(ctx context.Context, id uuid.UUID, n int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout)
	defer cancel()
	if err := d.lanes.DropArchived(ctx, id, n); err != nil {
		d.log.Info("an archived task stays in the web UI, although its delivery continued",
			logging.About(logging.Redis),
			"delivery", id, "error", err)
	}
}

// FindTask returns whether Redis has task t, and in which state (queue.Location).
func (d *Dispatcher) FindTask(t ledger.Task) (queue.Location, error) {
	return d.lanes.Find(ToQueue(t))
}

// RedisMarker returns the marker of this Redis: the time since which Redis has lost no task of Herald. Tasks that were
// enqueued before may be lost. If Redis has no marker, RedisMarker stores the given time as the marker and returns it.
// See queue.Marker.
func (d *Dispatcher) RedisMarker(ctx context.Context, now time.Time) (time.Time, error) {
	return d.lanes.Marker(ctx, now)
}

// ToQueue converts t to a task of package queue and selects its lane: Bulk if t.Bulk is set (backfills, new replays),
// otherwise Retry for later attempts and First for first attempts.
func ToQueue(t ledger.Task) queue.Task {
	lane := queue.First
	switch {
	case t.Bulk:
		lane = queue.Bulk
	case t.Attempts > 0:
		lane = queue.Retry
	}
	return queue.Task{DeliveryID: t.ID, N: t.N, Kind: t.Kind, Lane: lane, At: t.At}
}
