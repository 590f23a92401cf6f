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

	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

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
