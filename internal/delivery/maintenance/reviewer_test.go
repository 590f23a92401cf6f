package maintenance

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
