package delivery

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
)

// ReviewLedger is the part of *store.Store that ReviewEvents uses.
type ReviewLedger interface {
	TakeReviews(ctx context.Context, limit int) ([]store.Review, error)
	EndReview(ctx context.Context, l store.Review, next *job.Job) ([]store.Task, error)
}

const (
	reviewsAtOnce = 16
	reviewPause   = 2 * time.Second  // between two rounds of reviews
	reviewTimeout = 30 * time.Second // bounds one round; a review that has not ended then is due again later
)

// ReviewEvents makes reviews, round by round, until ctx ends. A review reads the event of a delivery from the chain
// again. It is due for a delivery that is final or was called, if a later job has the delivery's key but describes
// another event. After a reorg, the chain can have another event with the same key, such as the same feedback index.
// Without reviews, Herald would not notice a reorg that replaced an event on a chain that no follower reads. If the
// chain still has the delivery's event, the review changes nothing.
func (r *Runner) ReviewEvents(ctx context.Context, ledger ReviewLedger) {
	for range loop.Every(ctx, reviewPause) {
		r.executor.reviewOnce(ctx, ledger)
	}
}

// reviewOnce makes one round of at most reviewsAtOnce reviews (see ReviewEvents). It stops at the first error of the
// store, and logs it.
func (e *Executor) reviewOnce(ctx context.Context, ledger ReviewLedger) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	reviews, err := ledger.TakeReviews(ctx, reviewsAtOnce)
	for _, l := range reviews {
		if err == nil {
			err = e.endReview(ctx, ledger, l)
		}
	}
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("events of deliveries are not read again", logging.About(logging.Postgres), "error", err)
	}
}

// endReview makes the review l: it reads the delivery's event from the chain again, and ends the review in the store.
// If the chain has another, confirmed event with the same key, the store replaces the delivery's event by it. If the
// chain gives no answer yet (event.Checker.Review), the review does not end, and is due again later. The error is that
// of the store.
func (e *Executor) endReview(ctx context.Context, ledger ReviewLedger, l store.Review) error {
	next, decided := e.events.Review(ctx, l)
	if !decided {
		return nil
	}
	if next != nil {
		e.Logger.Info("a reorg replaced the event of a delivery", "delivery", l.ID, "key", l.Key)
	}
	tasks, err := ledger.EndReview(ctx, l, next)
	e.Dispatcher.Dispatch(ctx, tasks)
	return err
}
