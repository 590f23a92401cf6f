package follower

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// TestWebsocketWakes: a websocket notification makes the follower read a block, although the next poll is an hour away.
// It reads the block from the first node, which has no subscriptions.
func TestWebsocketWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.client = newReader(t, w.Net.ChainID(), false, w.Net.URL(), w.Net.WebSocketURL())
	jobs := w.follow(Config{Contracts: []common.Address{w.Net.Deployment().Reputation}, Poll: time.Hour})
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
}
