// Package loop makes the pauses of loops that end with a context. It starts no goroutine.
package loop

import (
	"context"
	"time"
)

// Every yields at every interval, as a time.Ticker does, until ctx ends. The first time is one interval from now.
func Every(ctx context.Context, interval time.Duration) func(yield func() bool) {
	return func(yield func() bool) {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if ctx.Err() != nil || !yield() {
					return
				}
			}
		}
	}
}

// Pause returns nil after d, or the error of ctx if ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
