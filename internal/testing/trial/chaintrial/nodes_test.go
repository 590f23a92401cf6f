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

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
)

func TestMain(m *testing.M) { shared.Main(m) }

// onEachChain runs a test on the development chain and on anvil.
func onEachChain(t *testing.T, within time.Duration, f func(ctx context.Context, t *testing.T, node Node)) {
	t.Run("devnet", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("not within %s", within))
		defer cancel()
		n := devnettest.Start(t, devnet.Config{ChainID: ChainID})
		f(ctx, t, onDevnet{n, n.Account(0)})
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

// TestWorld: the generator's record of its branch equals a plain reading of the chain, block by block and after reorgs.
func TestWorld(t *testing.T) {
	onEachChain(t, 2*time.Minute, func(ctx context.Context, t *testing.T, node Node) {
		w := newWorld(ctx, t, node, 11, "")
		for n := range 150 {
			if w.mine(10); n%20 == 19 {
				w.reorg()
			}
		}
		heraldtest.Equal(t, "the head", w.head(), w.headBlock())
		for i, events := range w.generator.blocks {
			logs := w.read(w.first+uint64(i), w.first+uint64(i))
			if len(logs) != len(events) {
				t.Fatalf("block %d has %d logs, %d were generated", i, len(logs), len(events))
			}
			for k, e := range events {
				if !slices.Equal(logs[k].Topics, e.Log.Topics) || !bytes.Equal(logs[k].Data, e.Log.Data) {
					t.Fatalf("log %d of block %d is %v, generated was %v", k, i, logs[k], e.Log)
				}
			}
		}
		logs := w.read(w.first, w.head())
		wanted := w.want(logs, countedNone)
		if len(wanted) == 0 || len(w.gone) == 0 {
			t.Fatalf("%d rows are wanted, %d keys are gone", len(wanted), len(w.gone))
		}
		checkCounts(ctx, t, w, logs, wanted)
	})
}

// checkCounts: for the newest blocks, whose state every node has, the client returns the same indexes as the reading.
func checkCounts(ctx context.Context, t *testing.T, w *world, logs []types.Log, wanted []Wanted) {
	t.Helper()
	nodes, err := node.New(node.Config{ChainID: ChainID, URLs: []secret.Secret{secret.New(w.node.URL())}})
	heraldtest.Must(t, err)
	defer nodes.Close()
	client := eventlog.New(nodes, false)
	const newest = 50
	from := logs[len(logs)-1].BlockNumber - newest
	var events []erc8004.Event
	for _, l := range logs {
		if l.BlockNumber < from {
			continue
		}
		e, err := erc8004.Decode(l)
		heraldtest.Must(t, err)
		events = append(events, e)
	}
	if uncountable, err := client.CountFeedback(ctx, events); err != nil || len(uncountable) > 0 {
		t.Fatalf("%d events cannot be counted: %v %v", len(uncountable), uncountable, err)
	}
	indexes := map[Position]uint64{}
	for _, e := range events {
		indexes[Position{e.BlockNumber, e.BlockHash, e.TxHash, e.LogIndex}] = e.FeedbackIndex
	}
	compared := 0
	for _, n := range wanted {
		if n.Position.Block < from || n.Refused != "" || !isCounted(n.Job.ClientAddress) {
			continue
		}
		compared++
		if got := indexes[n.Position]; got != n.Job.FeedbackIndex {
			t.Errorf("%s is counted as feedback %d", n.Key, got)
		}
	}
	if compared == 0 {
		t.Error("no feedback without an index in the newest blocks")
	}
}

// isCounted reports whether a client gives feedback without an index.
func isCounted(client common.Address) bool { return client.Big().Uint64() >= 1000+clients }
