package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
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

// helperVariable makes this test binary run as a worker that a test can kill.
const helperVariable = "HERALD_SERVICE_TEST_HELPER"

// runHelper runs a worker with the process's environment. It does not return.
func runHelper() {
	cfg, err := config.Load(os.Environ())
	if err == nil {
		err = Run(context.Background(), cfg, Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	}
	fmt.Fprintln(os.Stderr, "the helper ended:", err)
	os.Exit(1)
}

// startKillable starts a worker in its own process. kill sends SIGKILL and waits until the process has ended.
func startKillable(t *testing.T, env ...string) (log *heraldtest.Log, kill func()) {
	t.Helper()
	binary, err := os.Executable()
	heraldtest.Must(t, err)
	log = &heraldtest.Log{}
	cmd := exec.Command(binary)
	cmd.Env = append(env, helperVariable+"=1", "HERALD_LISTEN="+heraldtest.Address(t), "HERALD_ALLOW_NETWORKS=127.0.0.0/8",
		"IPFS_GATEWAYS=http://127.0.0.1:1")
	cmd.Stderr = log
	heraldtest.Must(t, cmd.Start())
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	return log, kill
}

// awaitLog waits until the log contains text.
func awaitLog(t *testing.T, log *heraldtest.Log, text string) {
	t.Helper()
	heraldtest.AwaitState(t, func() bool { return strings.Contains(log.String(), text) },
		func() string { return fmt.Sprintf("it does not say %q:\n%s", text, log) })
}

// awaitDelivered waits until n deliveries have succeeded.
func awaitDelivered(t *testing.T, st *store.Store, n int64) {
	t.Helper()
	var got map[outcome.Status]int64
	heraldtest.AwaitState(t, func() bool {
		var err error
		got, err = records.New(st).Count(t.Context(), records.Filter{})
		return err == nil && got[outcome.Delivered] == n
	}, func() string { return fmt.Sprintf("there are %v, want %d delivered", got, n) })
}

// TestWatchTakesOver checks that only one of two workers with HERALD_WATCH reads the chain. When it is killed, the
// other takes over within 10 s and delivers the feedback given in between.
func TestWatchTakesOver(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	env := workerEnv(t, net, fmt.Sprintf("HERALD_WATCH=%d", net.ChainID()), "HERALD_CONCURRENCY=4", "HERALD_DB_POOL=8")
	leader, kill := startKillable(t, env...)
	awaitLog(t, leader, "reading the chain")
	other := run(t, false, env...)
	w := other.up()
	awaitLog(t, other.log, "another process reads this chain: standing by")

	feedback(t, net, a.URL)
	awaitDelivered(t, w.Store, 1)
	if strings.Contains(other.log.String(), "reading the chain") {
		t.Fatalf("both read:\n%s", other.log)
	}
	kill()
	began := time.Now()
	feedback(t, net, a.URL)
	awaitLog(t, other.log, "reading the chain")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it was taken over after %s", took)
	}
	awaitDelivered(t, w.Store, 2)
	heraldtest.Must(t, other.stop())
}

// TestWatchedNodeAway checks that an unavailable node prevents the worker neither from starting nor from being ready,
// and that the chain is read once the node is available.
func TestWatchedNodeAway(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	node := heraldtest.NewGate(t, strings.TrimPrefix(net.URL(), "http://"))
	services := servicesEnv(t, fmt.Sprintf("HERALD_WATCH=%d", net.ChainID()))
	r := run(t, false, append(chainEnv(net, "http://"+node.Address), services...)...)
	w := r.up()
	r.untilReadyWithout(fmt.Sprintf("chain %d", net.ChainID()))
	node.Open()
	awaitLog(t, r.log, "reading the chain")
	feedback(t, net, a.URL)
	awaitDelivered(t, w.Store, 1)
}
