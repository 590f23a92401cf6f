package trial

import (
	"context"
	"fmt"
	"time"
)

// Until calls cond at once and then periodically until it returns true. what names the awaited state. An error of
// cond means "not yet", because a service may be down for a while. If ctx ends first, the error contains the last
// error of cond.
func Until(ctx context.Context, every time.Duration, what string, cond func() (bool, error)) error {
	began := time.Now()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last error
	for {
		ok, err := cond()
		if ok && err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise err may only report the end of ctx
			last = err
		}
		select {
		case <-ctx.Done():
			waited := time.Since(began).Round(time.Millisecond)
			if last != nil {
				return fmt.Errorf("waited %s for %s: %w (%w)", waited, what, last, context.Cause(ctx))
			}
			return fmt.Errorf("waited %s for %s: %w", waited, what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// Await is Until for a state that the process brings about. It returns an error at once if the process has ended.
func (p *Process) Await(ctx context.Context, every time.Duration, what string, cond func() (bool, error)) error {
	ended := false
	err := Until(ctx, every, what, func() (bool, error) {
		select {
		case <-p.done:
			ended = true
			return true, nil
		default:
			return cond()
		}
	})
	if ended {
		return fmt.Errorf("%s ended; awaited was %s: %s", p.name, what, tail(p.log))
	}
	return err
}
