// Package devnettest starts development chains for tests.
package devnettest

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentherald/herald/internal/testing/devnet"
)

// Start starts a chain and stops it when the test ends.
func Start(t testing.TB, cfg devnet.Config) *devnet.Net {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	n, err := devnet.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Leftovers returns options for the goroutines that go-ethereum's node leaves behind after it was closed: one set per
// process that recovers senders, the buffer drain of a closed in-memory database, which ends after a second, and a
// subscription to heads that is ended while the node closes: it waits for a loop that has ended.
func Leftovers() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		goleak.IgnoreTopFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		goleak.IgnoreTopFunction("github.com/ethereum/go-ethereum/eth/filters.(*Subscription).Unsubscribe.func1"),
	}
}
