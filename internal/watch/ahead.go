package watch

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/internal/chain"
)

// readAhead commits one range after the other, and has the next one read meanwhile: the node and the database work at
// the same time.
type readAhead struct {
	commit func(context.Context, chain.Range) error
	ranges chan chain.Range // unbuffered: one is committed, one is read
}

func newReadAhead(commit func(context.Context, chain.Range) error) *readAhead {
	return &readAhead{commit, make(chan chain.Range)}
}

// hand is the follower's Handle.
func (a *readAhead) hand(ctx context.Context, r chain.Range) error {
	select {
	case a.ranges <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run has follow hand over ranges until it ends or one cannot be committed, and returns when the last one that was
// handed over is committed, or why it is not. Run it once.
func (a *readAhead) run(ctx context.Context, follow func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for r := range a.ranges {
			if err := a.commit(ctx, r); err != nil {
				return err // ctx ends with it, and so does follow
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
