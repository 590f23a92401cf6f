//go:build chain

package chaintrial

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// usualDepth bounds three of four reorgs, as on real chains. mostDepth bounds the others. If all reorgs were that
// deep, the chain would not grow.
const (
	usualDepth = 6
	mostDepth  = 40
)

// mineTimeout bounds the time for mining a block.
const mineTimeout = 30 * time.Second

// world is a chain with emitters, the generator that fills it, and the events of removed branches.
type world struct {
	t          *testing.T
	ctx        context.Context
	node       Node
	deployment erc8004.Deployment
	first      uint64 // the block after those of the emitters
	gone       map[string]bool

	generator *Generator
	random    *rand.Rand
	past      History              // lives that ended, and the heights of the chain
	mined     map[uint64]time.Time // since when the branch has its blocks

	blocks, events  int // created on all branches
	reorgs, deepest int
}

// newWorld deploys the emitters. All agents have the same tokenURI.
func newWorld(ctx context.Context, t *testing.T, node Node, seed uint64, tokenURI string) *world {
	t.Helper()
	w := &world{t: t, ctx: ctx, node: node, gone: map[string]bool{}, mined: map[uint64]time.Time{},
		generator: NewGenerator(seed), random: rand.New(rand.NewPCG(seed, 4))}
	for _, at := range []*common.Address{&w.deployment.Identity, &w.deployment.Reputation, &w.deployment.Validation} {
		address, err := node.Deploy(ctx, EmitterCode(tokenURI))
		heraldtest.Must(t, err)
		*at = address
	}
	w.first = w.head() + 1
	return w
}

// head returns the number of the node's newest block.
func (w *world) head() uint64 {
	w.t.Helper()
	head, err := Head(w.ctx, w.node.URL())
	heraldtest.Must(w.t, err)
	return head
}

// calls returns the transactions that emit the events. Consecutive events of one registry share a transaction.
func (w *world) calls(events []Event) []Call {
	emitters := []Call{{To: w.deployment.Identity}, {To: w.deployment.Reputation}, {To: w.deployment.Validation}}
	var calls []Call
	for i, e := range events {
		if i == 0 || e.Emitter != events[i-1].Emitter {
			calls = append(calls, emitters[e.Emitter])
		}
		c := &calls[len(calls)-1]
		c.Data = append(c.Data, EmitCall(e.Log)...)
	}
	return calls
}

// mine mines a block.
func (w *world) mine(average int) {
	w.t.Helper()
	events, err := w.generator.Next(average)
	heraldtest.Must(w.t, err)
	w.blocks++
	w.events += len(events)
	w.noteMined(time.Now(), 1)
	ctx, cancel := context.WithTimeoutCause(w.ctx, mineTimeout, fmt.Errorf("the block was not mined within %s", mineTimeout))
	defer cancel()
	heraldtest.Must(w.t, w.node.Mine(ctx, w.calls(events)))
}

// headBlock returns the newest block of the branch.
func (w *world) headBlock() uint64 { return w.first + uint64(w.generator.Blocks()) - 1 }

// isHighest reports whether the branch is as high as the chain ever was. While an old head stays below a block that a
// follower has read, the follower takes it for a node that lags. So a chain that rests must not be lower than it was.
func (w *world) isHighest() bool {
	return !slices.ContainsFunc(w.past.Heights, func(h Height) bool { return h.Head > w.headBlock() })
}

// noteMined records the time since which the newest blocks exist. at is before they were mined.
func (w *world) noteMined(at time.Time, blocks int) {
	for n := w.headBlock(); blocks > 0 && n >= w.first; n, blocks = n-1, blocks-1 {
		w.mined[n] = at
	}
	w.past.Heights = append(w.past.Heights, Height{at, w.headBlock()})
}

// reorg replaces or removes the newest blocks.
func (w *world) reorg() {
	w.t.Helper()
	depth := 1 + w.random.IntN(usualDepth)
	if w.random.IntN(4) == 0 {
		depth = 1 + w.random.IntN(mostDepth)
	}
	keep := w.random.IntN(2) == 0
	if depth = min(depth, w.generator.Blocks()); depth == 0 {
		return
	}
	began := time.Now()
	buried := w.buryBlocks(depth)
	before := w.generator.Blocks() - depth
	w.reorgs++
	w.deepest = max(w.deepest, depth)
	if keep {
		var again []Call
		for _, block := range w.generator.Newest(depth) {
			again = append(again, w.calls(block)...)
		}
		heraldtest.Must(w.t, w.node.Replace(w.ctx, depth, again))
		w.generator.Fold(depth)
	} else {
		heraldtest.Must(w.t, w.node.Rollback(w.ctx, depth))
		w.generator.Drop(depth)
	}
	head := w.head()
	if known := w.headBlock(); head < known {
		w.t.Fatalf("the head is %d, that of the generator %d", head, known)
	}
	w.generator.AddEmpty(int(head - w.headBlock()))
	w.noteMined(began, w.generator.Blocks()-before)
	for _, l := range buried {
		l.Until = time.Now()
		w.past.Lives = append(w.past.Lives, l)
	}
}

// buryBlocks records the keys of the events in the newest blocks before they are removed, and returns their lives.
func (w *world) buryBlocks(depth int) []Life {
	w.t.Helper()
	last := w.headBlock()
	first := last - uint64(depth) + 1
	wanted := w.want(w.read(first, last), w.lastIndexAt(first-1))
	Bury(w.gone, wanted)
	return w.lives(wanted)
}

// read returns the logs of the blocks from first to last, by the plain reading.
func (w *world) read(first, last uint64) []types.Log {
	w.t.Helper()
	logs, err := ReadBlocks(w.ctx, w.node.URL(), first, last, w.deployment)
	heraldtest.Must(w.t, err)
	return logs
}

// want returns the rows for logs.
func (w *world) want(logs []types.Log, before CountedBefore) []Wanted {
	w.t.Helper()
	wanted, err := Want(logs, ChainID, w.deployment, before)
	heraldtest.Must(w.t, err)
	return wanted
}

// lives returns the lives of events on the branch.
func (w *world) lives(wanted []Wanted) (lives []Life) {
	for _, e := range wanted {
		if e.Refused == "" {
			lives = append(lives, Life{Wanted: e, From: w.mined[e.Position.Block]})
		}
	}
	return lives
}

// history returns the past events and the present ones, which want returned.
func (w *world) history(present []Wanted) History {
	h := w.past
	h.Lives = append(slices.Clone(h.Lives), w.lives(present)...)
	return h
}

// lastIndexAt returns a function that asks the emitters for their counts at the end of a block.
func (w *world) lastIndexAt(block uint64) CountedBefore {
	return func(registry common.Address, agentID *big.Int, client common.Address) (uint64, error) {
		call, err := erc8004.PackGetLastIndex(agentID, client)
		heraldtest.Must(w.t, err)
		var answer hexutil.Bytes
		heraldtest.Must(w.t, Ask(w.ctx, w.node.URL(), &answer, "eth_call",
			map[string]any{"to": registry, "data": hexutil.Bytes(call)}, hexutil.Uint64(block)))
		return erc8004.UnpackGetLastIndex(answer)
	}
}
