package maintenance

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
)

// reviewLedger has no reviews, and fails every second time.
type reviewLedger struct {
	ReviewLedger
	asked int
}

func (l *reviewLedger) TakeReviews(context.Context, int) ([]ledger.Review, error) {
	if l.asked++; l.asked%2 == 0 {
		return nil, errors.New("away")
	}
	return nil, nil
}

// noEvents reads no event.
type noEvents struct{}

func (noEvents) Review(context.Context, ledger.Review) (*job.Job, bool) { return nil, false }

// TestReviewEvents: a round runs each reviewPause until the worker stops. A failure of Postgres is logged, and the next
// round runs.
func TestReviewEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ledger := &reviewLedger{}
		r := &Reviewer{Ledger: ledger, Events: noEvents{}, Dispatcher: nobody{},
			Logger: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 4*reviewPause+time.Second)
		defer cancel()
		r.Run(ctx)
		if lines := bytes.Count(log.Bytes(), []byte("not read again")); ledger.asked != 4 || lines != 2 {
			t.Errorf("%d rounds, logged %s", ledger.asked, log.String())
		}
	})
}

// twoReviews has one review of a chain whose node hangs, and then one of another chain.
type twoReviews struct {
	ReviewLedger
	ended []uint64 // chains
}

func (*twoReviews) TakeReviews(context.Context, int) ([]ledger.Review, error) {
	return []ledger.Review{{Job: job.Job{ChainID: 1}}, {Job: job.Job{ChainID: 2}}}, nil
}

func (l *twoReviews) EndReview(_ context.Context, r ledger.Review, _ *job.Job) ([]ledger.Task, error) {
	l.ended = append(l.ended, r.Job.ChainID)
	return nil, nil
}

// hangingChain reads the events of all chains except chain 1, whose node answers nothing.
type hangingChain struct{}

func (hangingChain) Review(ctx context.Context, l ledger.Review) (*job.Job, bool) {
	if l.Job.ChainID == 1 {
		<-ctx.Done()
	}
	return nil, ctx.Err() == nil
}

// TestSlowReviewsDelayNoOther: a node that hangs does not use up the time of a round, so that reviews of other chains
// end.
func TestSlowReviewsDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reviews := &twoReviews{}
		r := &Reviewer{Ledger: reviews, Events: hangingChain{}, Dispatcher: nobody{},
			Logger: slog.New(slog.DiscardHandler)}
		r.ReviewOnce(t.Context())
		if !slices.Equal(reviews.ended, []uint64{2}) {
			t.Errorf("reviews of chains %d ended, want that of chain 2", reviews.ended)
		}
	})
}
