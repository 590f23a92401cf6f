//go:build chain

package chaintrial

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"go.uber.org/goleak"

	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/devnet/devnettest"
	"github.com/agentherald/herald/internal/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(runner{m}, devnettest.Leftovers()...) }

// runner closes the connections to nodes before goroutines are looked for.
type runner struct{ m *testing.M }

func (r runner) Run() int {
	defer http.DefaultClient.CloseIdleConnections()
	return r.m.Run()
}

// onEachChain runs a test on the in-process chain and on anvil.
func onEachChain(t *testing.T, within time.Duration, f func(ctx context.Context, t *testing.T, node Node)) {
	t.Run("devnet", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("not within %s", within))
		defer cancel()
		n := devnettest.Start(t, devnet.Config{ChainID: ChainID})
		f(ctx, t, inProcess{n, n.Account(0)})
	})
	t.Run("anvil", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("not within %s", within))
		defer cancel()
		n, err := startAnvil(ctx, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			http.DefaultClient.CloseIdleConnections()
			if err := n.process.End(); err != nil {
				t.Error(err)
			}
		})
		f(ctx, t, n)
	})
}

// What the generator says of its branch is what a plain reading of the chain finds, block by block, reorgs and all.
func TestWorld(t *testing.T) {
	onEachChain(t, 2*time.Minute, func(ctx context.Context, t *testing.T, node Node) {
		w, err := NewWorld(ctx, node, 11)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 150 {
			err := w.Mine(ctx, 10)
			if err == nil && n%20 == 19 {
				err = w.Reorg(ctx)
			}
			if err != nil {
				t.Fatalf("block %d: %v", n, err)
			}
		}
		if err := w.checkHead(ctx); err != nil {
			t.Fatal(err)
		}
		for i, events := range w.generator.blocks {
			logs, err := ReadBlocks(ctx, node.URL(), w.First+uint64(i), w.First+uint64(i), w.Deployment)
			if err != nil {
				t.Fatal(err)
			}
			if len(logs) != len(events) {
				t.Fatalf("block %d has %d logs, %d were generated", i, len(logs), len(events))
			}
			for k, e := range events {
				if !slices.Equal(logs[k].Topics, e.Log.Topics) || !bytes.Equal(logs[k].Data, e.Log.Data) {
					t.Fatalf("log %d of block %d is %v, generated was %v", k, i, logs[k], e.Log)
				}
			}
		}
		logs, err := w.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// What the emitters count is what a reading counts.
		last := map[string]Wanted{}
		wanted, err := Want(logs, ChainID, w.Deployment, countedNone)
		if err != nil || len(wanted) == 0 || len(w.Gone) == 0 {
			t.Fatalf("%d rows are wanted, %d keys are gone: %v", len(wanted), len(w.Gone), err)
		}
		for _, n := range wanted {
			if n.Refused == "" && n.Job.Kind == job.KindNewFeedback && isCounted(n.Job.ClientAddress) {
				last[n.Job.OrderKey()] = n
			}
		}
		head, err := Head(ctx, node.URL())
		if err != nil || len(last) == 0 {
			t.Fatalf("%d pairs are counted: %v", len(last), err)
		}
		for pair, n := range last {
			got, err := w.lastIndexAt(ctx, head)(n.Job.ReputationRegistry, n.Job.AgentID, n.Job.ClientAddress)
			// A refused one after it counts too.
			if err != nil || got < n.Job.FeedbackIndex || got > n.Job.FeedbackIndex+3 {
				t.Errorf("the emitter counted %d for %s, the reading %d: %v", got, pair, n.Job.FeedbackIndex, err)
			}
		}
	})
}

// isCounted tells whether a client gives feedback without an index.
func isCounted(client common.Address) bool { return client.Big().Uint64() >= 1000+clients }
