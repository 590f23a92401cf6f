package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
)

// TestLagIsReported checks that /readyz, the log and the metrics report how far the reading of a chain is behind.
func TestLagIsReported(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	database := secret.New(heraldtest.Postgres(t, postgres.Migrate))
	cfg := load(t, append(chainEnv(net, net.URL()), "DATABASE_URL="+database.Reveal(), "HERALD_QUEUE=embedded",
		"HERALD_KEYSET="+heraldtest.Keyset(t), fmt.Sprintf("HERALD_WATCH=%d", net.ChainID()))...)
	nodes, err := node.New(node.Config{ChainID: net.ChainID(), URLs: []secret.Secret{secret.New(net.URL())}})
	heraldtest.Must(t, err)
	t.Cleanup(nodes.Close)
	client := chain.New(chain.Config{Logs: eventlog.New(nodes, false)})
	told := &heraldtest.Log{}
	a := &assembly{cfg: cfg, backend: &backend.Backend{DatabaseURL: database}, upkeep: &store.Store{}, metrics: prometheus.NewRegistry(), ready: newReadiness(),
		content: &Content{chains: map[uint64]*chain.Client{net.ChainID(): client}}, log: slog.New(slog.NewTextHandler(told, nil))}
	t.Cleanup(a.closeParts)
	heraldtest.Must(t, a.openFollowers())
	f := a.followers
	followed := f.chains[0]
	if p := f.measureProgress(t.Context(), followed); p.known {
		t.Errorf("it has not been read yet: %+v", p)
	}
	newest, err := client.ReadHead(t.Context())
	heraldtest.Must(t, err)
	head := uint64(newest.Number)
	c, err := f.store.OpenCursor(t.Context(), followed.watcher.Keys()[0], head, nil)
	if err == nil {
		_, err = f.store.AdvanceCursors(t.Context(), []*cursor.Cursor{&c}, store.Advance{From: head, To: head, Head: head})
	}
	heraldtest.Must(t, err)
	if p := f.measureProgress(t.Context(), followed); !p.known || p.behind || p.lag.Blocks != 0 {
		t.Errorf("it is read to its head: %+v", p)
	}
	for range 2 * int(behindAfter/time.Second) { // the chain's clock advances by at least one second per block
		_, err := net.Commit()
		heraldtest.Must(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.watchLag(ctx, followed)
	}()
	name := fmt.Sprintf("reading chain %d", net.ChainID())
	heraldtest.Await(t, "the readiness names it", func() bool {
		waiting, degraded := a.ready.readState()
		return len(waiting) == 1 && strings.Contains(degraded[name], "120 blocks are not read yet")
	})
	cancel()
	<-done
	heraldtest.Contains(t, "the log", told.String(), "events come late")
	since := time.Now().Add(-2 * time.Minute)
	heraldtest.Must(t, f.store.NoteStall(t.Context(), followed.watcher.Keys()[0], &since, "the node answered error -32014: no"))
	f.reportProgress(net.ChainID(), f.measureProgress(t.Context(), followed))
	_, degraded := a.ready.readState()
	heraldtest.Contains(t, "the degraded chain", degraded[name], "error -32014: no")
	found, err := a.metrics.Gather()
	heraldtest.Must(t, err)
	values := map[string]float64{}
	for _, m := range found {
		one := m.GetMetric()[0]
		values[m.GetName()] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
	}
	if len(values) != 6 || values["herald_chain_lag_blocks"] != 120 || values["herald_chain_up"] != 1 || values["herald_chain_lag_seconds"] < 119 {
		t.Errorf("%v", values)
	}
}
