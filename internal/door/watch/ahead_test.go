package watch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestReadAhead: while one range is committed, exactly one further range is read. Ranges are committed in order, and
// run returns after the last commit.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var committed []uint64
		goOn := make(chan struct{})
		a := newReadAhead(func(_ context.Context, r follower.Range) (time.Duration, error) {
			<-goOn
			committed = append(committed, r.To)
			return 0, nil
		})
		read := uint64(0)
		ended := make(chan error, 1)
		go func() {
			ended <- a.run(t.Context(), func(ctx context.Context) error {
				for read < 4 {
					read++
					if err := a.handRange(ctx, follower.Range{To: read}); err != nil {
						return err
					}
				}
				return nil
			})
		}()
		synctest.Wait()
		heraldtest.Equal(t, "ranges that were read", read, 2)
		heraldtest.Equal(t, "ranges that were committed", len(committed), 0)
		for range 3 {
			goOn <- struct{}{}
		}
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("it ended (%v) before the last range was committed", err)
		default:
		}
		goOn <- struct{}{}
		if err := <-ended; err != nil || !slices.Equal(committed, []uint64{1, 2, 3, 4}) {
			t.Errorf("committed %v, %v", committed, err)
		}
	})
}

// TestReadAheadFails: if a range cannot be committed, the range that was read ahead is not committed either, and run
// returns the error.
func TestReadAheadFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("the database is away")
		var tried []uint64
		a := newReadAhead(func(_ context.Context, r follower.Range) (time.Duration, error) {
			tried = append(tried, r.To)
			return 0, broken
		})
		err := a.run(t.Context(), func(ctx context.Context) error {
			for n := uint64(1); ; n++ {
				if err := a.handRange(ctx, follower.Range{To: n}); err != nil {
					return err
				}
			}
		})
		if !errors.Is(err, broken) || !slices.Equal(tried, []uint64{1}) {
			t.Errorf("%v, tried %v", err, tried)
		}
	})
}
