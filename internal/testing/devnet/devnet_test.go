package devnet_test

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func start(t *testing.T, cfg devnet.Config) (*devnet.Net, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return devnettest.Start(t, cfg), ctx
}

func TestTickerMinesAndStops(t *testing.T) {
	n, ctx := start(t, devnet.Config{Interval: 5 * time.Millisecond})
	heads := make(chan *types.Header, 4)
	sub, err := n.Client().SubscribeNewHead(ctx, heads)
	heraldtest.Must(t, err)
	defer sub.Unsubscribe()
	for range 2 {
		select {
		case <-heads:
		case <-ctx.Done():
			t.Fatal("no block was mined")
		}
	}
	if _, _, err := n.Register(ctx, n.Account(0), ""); err != nil {
		t.Error(err)
	}
}

func TestSameAddressesInEveryRun(t *testing.T) {
	a, _ := start(t, devnet.Config{})
	b, _ := start(t, devnet.Config{ChainID: 1, Accounts: 10})
	if a.Deployment() != b.Deployment() || a.Account(3).Address != b.Account(3).Address {
		t.Errorf("%+v, %+v", a.Deployment(), b.Deployment())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Commit(); err == nil {
		t.Error("a closed chain mined a block")
	}
}
