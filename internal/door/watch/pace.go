package watch

import (
	"context"
	"time"
)

// pace limits the deliveries of a backfill to a number per second: later deliveries wait until the time of the
// previous ones has passed. It never splits a range, so that the cursor moves over all blocks of a range at once.
type pace struct {
	rate float64   // deliveries per second; 0: unlimited
	over time.Time // when the time of the counted deliveries ends
}

// count records n more deliveries.
func (p *pace) count(n int) {
	if p.rate == 0 || n == 0 {
		return
	}
	if now := time.Now(); p.over.Before(now) {
		p.over = now
	}
	p.over = p.over.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
}

// wait waits until the time of the counted deliveries has passed. If ctx ends first, it returns ctx's error.
func (p *pace) wait(ctx context.Context) error {
	over, cancel := context.WithDeadline(ctx, p.over)
	defer cancel()
	<-over.Done()
	return ctx.Err()
}
