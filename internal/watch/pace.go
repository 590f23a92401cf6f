package watch

import (
	"context"
	"time"
)

// pace keeps the deliveries that a backfill brings to a number a second: what follows them waits for their time to be
// over. A range is not divided, so that the cursor moves with all of its blocks.
type pace struct {
	rate float64   // deliveries a second; 0: as fast as it goes
	over time.Time // when the time of those so far is over
}

// count notes n more deliveries.
func (p *pace) count(n int) {
	if p.rate == 0 || n == 0 {
		return
	}
	if now := time.Now(); p.over.Before(now) {
		p.over = now
	}
	p.over = p.over.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
}

// wait waits until the time of those so far is over, or ctx is: then it returns why.
func (p *pace) wait(ctx context.Context) error {
	over, cancel := context.WithDeadline(ctx, p.over)
	defer cancel()
	<-over.Done()
	return ctx.Err()
}
