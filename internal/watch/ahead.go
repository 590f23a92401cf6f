package watch

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/internal/chain"
)

// readAhead commits one range while the follower reads the next one, so that the node and the database work at the
// same time.
type readAhead struct {
	commit func(context.Context, chain.Range) error
	ranges chan chain.Range // unbuffered: one range is committed while another is read
}

func newReadAhead(commit func(context.Context, chain.Range) error) *readAhead {
	return &readAhead{commit, make(chan chain.Range)}
}

// hand is the follower's Handle. It waits until the previous range is committed.
func (a *readAhead) hand(ctx context.Context, r chain.Range) error {
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
		for r := range a.ranges {
			if err := a.commit(ctx, r); err != nil {
				return err // cancels ctx, which ends follow
			}
		}
		return nil
	})
	err := follow(ctx)
	close(a.ranges)
	if failed := group.Wait(); failed != nil {
		return failed
	}
	return err
}
