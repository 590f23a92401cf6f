package maintenance

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
)

// ReviewLedger is the part of the store that a Reviewer uses.
type ReviewLedger interface {
	TakeReviews(ctx context.Context, limit int) ([]ledger.Review, error)
	EndReview(ctx context.Context, l ledger.Review, next *job.Job) ([]ledger.Task, error)
}

// EventReader reads the event of a delivery from the chain again (event.Checker.Review).
type EventReader interface {
	Review(ctx context.Context, l ledger.Review) (next *job.Job, decided bool)
}

// Reviewer makes reviews. A review reads the event of a delivery from the chain again. It is due for a delivery that is
// final or was called, if a later job has the delivery's key but describes another event. After a reorg, the chain can
// have another event with the same key, such as the same feedback index. A review is also due if a job arrives again
// after its event may have left the chain. On a chain that no follower reads, Herald would not notice without reviews
// that a reorg replaced an event, or that an event has returned. All fields are required.
type Reviewer struct {
	Ledger     ReviewLedger
	Events     EventReader
	Dispatcher Dispatcher
	Logger     *slog.Logger
}

const (
	reviewsAtOnce = 16
	reviewPause   = 2 * time.Second  // between two rounds of reviews
	reviewTimeout = 30 * time.Second // bounds one round; a review that has not ended then is due again later
)

// Run makes reviews, round by round, until ctx ends.
func (r *Reviewer) Run(ctx context.Context) {
	for range loop.Every(ctx, reviewPause) {
		r.ReviewOnce(ctx)
	}
}

// ReviewOnce makes one round of at most reviewsAtOnce reviews, and logs an error of the store. It makes the reviews
// concurrently: a slow node of one chain must not use up the time of the others.
func (r *Reviewer) ReviewOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	reviews, err := r.Ledger.TakeReviews(ctx, reviewsAtOnce)
	var ending sync.Mutex // the store has few connections for maintenance
	var round errgroup.Group
	for _, l := range reviews {
		round.Go(func() error { return r.endReview(ctx, l, &ending) })
	}
	if err = cmp.Or(err, round.Wait()); err != nil && ctx.Err() == nil {
		r.Logger.Warn("events of deliveries are not read again", logging.About(logging.Postgres), "error", err)
	}
}

// endReview makes the review l: it reads the delivery's event from the chain again, and ends the review in the store.
// If the chain has another, confirmed event with the same key, the store replaces the delivery's event by it. If an
// event that had left the chain has returned, the store queues it again. If the chain gives no answer yet
// (EventReader.Review), the review does not end, and is due again later. The error is that of the store, which
// endReview uses while it holds ending.
func (r *Reviewer) endReview(ctx context.Context, l ledger.Review, ending *sync.Mutex) error {
	next, decided := r.Events.Review(ctx, l)
	if !decided {
		return nil
	}
	ending.Lock()
	defer ending.Unlock()
	if next != nil && !next.SameEvent(l.Job) {
		r.Logger.Info("a reorg replaced the event of a delivery", "delivery", l.ID, "key", l.Key)
	}
	tasks, err := r.Ledger.EndReview(ctx, l, next)
	r.Dispatcher.Dispatch(ctx, tasks)
	return err
}
