package follower

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestWebsocketWakes: a websocket notification makes the follower read a block, although the next poll is an hour away.
// It reads the block from the first node, which has no subscriptions.
func TestWebsocketWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newReader(t, w.Net.ChainID(), false, w.Net.URL(), w.Net.WebSocketURL())
	jobs := make(chan job.Job, 10)
	f := New(c, Config{Deployment: w.Net.Deployment(), Contracts: []common.Address{w.Net.Deployment().Reputation},
		Poll: time.Hour, Limits: limits, Handle: func(_ context.Context, r Range) error {
			for _, e := range r.Events {
				jobs <- e.Job
			}
			return nil
		}})
	ctx, cancel := context.WithCancel(w.Ctx)
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()

	w.Feedback()
	again := time.NewTicker(20 * time.Millisecond) // mines blocks until one arrives after the subscription
	defer again.Stop()
	for waiting := true; waiting; {
		select {
		case <-jobs:
			waiting = false
		case <-again.C:
			w.Mine(1)
		case <-w.Ctx.Done():
			t.Fatal("no block woke the follower")
		}
	}
	w.Feedback() // from here on, every block wakes the follower at once
	w.next(jobs)
	cancel()
	heraldtest.Fails(t, "the error", <-done, context.Canceled)
}
