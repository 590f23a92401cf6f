//go:build chain

package chaintrial

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
)

func TestMain(m *testing.M) { shared.Main(m, devnettest.Leftovers()...) }

// onEachChain runs a test on the in-process chain and on anvil.
func onEachChain(t *testing.T, within time.Duration, f func(ctx context.Context, t *testing.T, node Node)) {
	t.Run("devnet", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("not within %s", within))
		defer cancel()
		n := devnettest.Start(t, devnet.Config{ChainID: ChainID})
		f(ctx, t, inProcess{n, n.Account(0)})
	})
	onAnvil(t, "anvil", within, f)
}

// onAnvil runs a test on anvil.
func onAnvil(t *testing.T, name string, within time.Duration, f func(ctx context.Context, t *testing.T, node Node)) {
	t.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("not within %s", within))
		defer cancel()
		n, err := StartAnvil(ctx, t.TempDir())
		heraldtest.Must(t, err)
		t.Cleanup(func() {
			http.DefaultClient.CloseIdleConnections()
			if err := n.End(); err != nil {
				t.Error(err)
			}
		})
		f(ctx, t, n)
	})
}
