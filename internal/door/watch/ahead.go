package watch

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/internal/chain/follower"
)

// readAhead commits one range while the follower reads the next one, so that the node and the database work at the
// same time.
type readAhead struct {
	commit commitFunc
	ranges chan follower.Range // unbuffered: one range is committed while another is read
}

// commitFunc commits a range, or defers that: then it is called again after the returned time, with this range or with
// a later one.
type commitFunc func(context.Context, follower.Range) (again time.Duration, _ error)

func newReadAhead(commit commitFunc) *readAhead { return &readAhead{commit, make(chan follower.Range)} }

// handRange is the follower's Handle. It waits until the previous range is committed.
func (a *readAhead) handRange(ctx context.Context, r follower.Range) error {
	select {
	case a.ranges <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run calls follow, which hands over ranges, and commits them. It returns after the last range was committed. The
// error is that of a failed commit, which also ends follow, or that of follow. Call run once.
func (a *readAhead) run(ctx context.Context, follow func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		var r follower.Range
		var again <-chan time.Time // nil: no range is deferred
		for isOpen := true; ; {
			select {
			case r, isOpen = <-a.ranges:
			case <-again:
			}
			if !isOpen {
				return nil
			}
			wait, err := a.commit(ctx, r)
			if err != nil {
				return err // cancels ctx, which ends follow
			}
			if again = nil; wait > 0 {
				again = time.After(wait)
			}
		}
	})
	err := follow(ctx)
	close(a.ranges)
	if failed := group.Wait(); failed != nil {
		return failed
	}
	return err
}
