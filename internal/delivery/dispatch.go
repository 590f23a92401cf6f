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

// Lanes is Redis as the dispatcher needs it.
type Lanes interface {
	Enqueue(ctx context.Context, t queue.Task) error
	Find(t queue.Task) (queue.Location, error)
	Marker(ctx context.Context, now time.Time) (time.Time, error)
	Drop(ctx context.Context, tasks []queue.Task) error
	DropArchived(ctx context.Context, id uuid.UUID, n int) error
}

const (
	enqueueTimeout  = 5 * time.Second  // one task
	dispatchTimeout = 30 * time.Second // all of one hand-out
)

// Dispatcher puts handed-out deliveries into Redis. What Redis cannot take stays handed out in Postgres, and the
// reconciler (internal/delivery/maintenance) finds it: losing Redis costs time, never work.
type Dispatcher struct {
	lanes Lanes
	log   *slog.Logger
}

// NewDispatcher needs the lanes.
func NewDispatcher(lanes Lanes, log *slog.Logger) (*Dispatcher, error) {
	if lanes == nil {
		return nil, errors.New("delivery: a dispatcher needs lanes")
	}
	if log == nil {
		log = slog.Default()
	}
	return &Dispatcher{lanes, log}, nil
}

// Dispatch puts tasks into Redis and returns how many it took. Those that have ended it removes there, if it can. It
// outlives the caller's context for a moment: the hand-out is committed already.
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
			d.log.Warn("Redis does not take tasks; they are handed out again when it does",
				logging.About(logging.Redis), "tasks", len(tasks)-i, "error", err)
			return i
		}
	}
	return len(tasks)
}

// dropEnded removes from the web UI the tasks that their deliveries go on without.
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

// DropArchived removes from the web UI what earlier tasks of a delivery left in the archive that has ended with task n:
// what dropEnded could not. What Redis does not do now stays there until asynq forgets it; nothing depends on it.
func (d *Dispatcher) DropArchived(ctx context.Context, id uuid.UUID, n int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout)
	defer cancel()
	if err := d.lanes.DropArchived(ctx, id, n); err != nil {
		d.log.Info("an archived task stays in the web UI, though its delivery went on", logging.About(logging.Redis),
			"delivery", id, "error", err)
	}
}

// FindTask tells where Redis has the task of a dispatched delivery.
func (d *Dispatcher) FindTask(t store.Task) (queue.Location, error) {
	return d.lanes.Find(queueTask(t))
}

// RedisMarker is when the Redis of today was first seen; now, if it is seen for the first time.
func (d *Dispatcher) RedisMarker(ctx context.Context, now time.Time) (time.Time, error) {
	return d.lanes.Marker(ctx, now)
}

// queueTask gives a task its lane: later attempts do not stand in front of first ones, nor replays and a backfill's
// deliveries in front of either.
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
