package trial

import (
	"context"
	"fmt"
	"time"
)

// Until asks at once and then every so often until cond is true; what names the thing that is waited for. An error of cond means
// "not yet", since what is asked may be away for a while; the last one is told when ctx ends first.
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
		if ctx.Err() == nil { // else err may only say that
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
