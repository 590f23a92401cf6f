//go:build chain

package chaintrial

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
)

// usualDepth bounds three of four reorgs, as on real chains. mostDepth bounds the others. If all reorgs were that
// deep, the chain would not grow.
const (
	usualDepth = 6
	mostDepth  = 40
)

// mineTimeout bounds the time for mining a block.
const mineTimeout = 30 * time.Second

// World is a chain with emitters, the generator that fills it, and the events of removed branches.
type World struct {
	Node       Node
	Deployment erc8004.Deployment
	First      uint64 // the block after those of the emitters
	Gone       map[string]bool

	generator *Generator
	random    *rand.Rand
	past      History              // lives that ended, and the heights of the chain
	mined     map[uint64]time.Time // since when the branch has its blocks

	Blocks, Events  int // created on all branches
	Reorgs, Deepest int
}

// NewWorld deploys the emitters. All agents have the same tokenURI.
func NewWorld(ctx context.Context, node Node, seed uint64, tokenURI string) (*World, error) {
	w := &World{Node: node, Gone: map[string]bool{}, mined: map[uint64]time.Time{}, generator: NewGenerator(seed),
		random: rand.New(rand.NewPCG(seed, 4))}
	for _, at := range []*common.Address{&w.Deployment.Identity, &w.Deployment.Reputation, &w.Deployment.Validation} {
		address, err := node.Deploy(ctx, EmitterCode(tokenURI))
		if err != nil {
			return nil, fmt.Errorf("deploy an emitter: %w", err)
		}
		*at = address
	}
	head, err := Head(ctx, node.URL())
	w.First = head + 1
	return w, err
}

// calls returns the transactions that emit the events. Consecutive events of one registry share a transaction.
func (w *World) calls(events []Event) []Call {
	emitters := []Call{{To: w.Deployment.Identity}, {To: w.Deployment.Reputation}, {To: w.Deployment.Validation}}
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

// Mine mines a block.
func (w *World) Mine(ctx context.Context, average int) error {
	events, err := w.generator.Next(average)
	if err != nil {
		return err
	}
	w.Blocks++
	w.Events += len(events)
	w.noteMined(time.Now(), 1)
	ctx, cancel := context.WithTimeoutCause(ctx, mineTimeout, fmt.Errorf("the block was not mined within %s", mineTimeout))
	defer cancel()
	return w.Node.Mine(ctx, w.calls(events))
}

// headBlock returns the newest block of the branch.
func (w *World) headBlock() uint64 { return w.First + uint64(w.generator.Blocks()) - 1 }

// IsHighest reports whether the branch is as high as the chain ever was. While an old head stays below a block that a
// follower has read, the follower takes it for a node that lags. So a chain that rests must not be lower than it was.
func (w *World) IsHighest() bool {
	return !slices.ContainsFunc(w.past.Heights, func(h Height) bool { return h.Head > w.headBlock() })
}

// noteMined records the time since which the newest blocks exist. at is before they were mined.
func (w *World) noteMined(at time.Time, blocks int) {
	for n := w.headBlock(); blocks > 0 && n >= w.First; n, blocks = n-1, blocks-1 {
		w.mined[n] = at
	}
	w.past.Heights = append(w.past.Heights, Height{at, w.headBlock()})
}

// Reorg replaces or removes the newest blocks.
func (w *World) Reorg(ctx context.Context) error {
	depth := 1 + w.random.IntN(usualDepth)
	if w.random.IntN(4) == 0 {
		depth = 1 + w.random.IntN(mostDepth)
	}
	keep := w.random.IntN(2) == 0
	if depth > w.generator.Blocks() {
		depth = w.generator.Blocks()
	}
	if depth == 0 {
		return nil
	}
	began := time.Now()
	buried, err := w.buryBlocks(ctx, depth)
	if err != nil {
		return err
	}
	before := w.generator.Blocks() - depth
	w.Reorgs++
	w.Deepest = max(w.Deepest, depth)
	if keep {
		var again []Call
		for _, block := range w.generator.Newest(depth) {
			again = append(again, w.calls(block)...)
		}
		if err := w.Node.Replace(ctx, depth, again); err != nil {
			return fmt.Errorf("replace %d blocks: %w", depth, err)
		}
		w.generator.Fold(depth)
	} else {
		if err := w.Node.Rollback(ctx, depth); err != nil {
			return fmt.Errorf("take %d blocks back: %w", depth, err)
		}
		w.generator.Drop(depth)
	}
	head, err := Head(ctx, w.Node.URL())
	if known := w.headBlock(); err == nil && head < known {
		err = fmt.Errorf("the head is %d, that of the generator %d", head, known)
	}
	if err != nil {
		return err
	}
	w.generator.AddEmpty(int(head - w.headBlock()))
	w.noteMined(began, w.generator.Blocks()-before)
	for _, l := range buried {
		l.Until = time.Now()
		w.past.Lives = append(w.past.Lives, l)
	}
	return nil
}

// buryBlocks records the keys of the events in the newest blocks before they are removed, and returns their lives.
func (w *World) buryBlocks(ctx context.Context, depth int) ([]Life, error) {
	last := w.headBlock()
	first := last - uint64(depth) + 1
	logs, err := ReadBlocks(ctx, w.Node.URL(), first, last, w.Deployment)
	if err != nil {
		return nil, err
	}
	wanted, err := Want(logs, ChainID, w.Deployment, w.lastIndexAt(ctx, first-1))
	Bury(w.Gone, wanted)
	return w.lives(wanted), err
}

// lives returns the lives of events on the branch.
func (w *World) lives(wanted []Wanted) (lives []Life) {
	for _, e := range wanted {
		if e.Refused == "" {
			lives = append(lives, Life{Wanted: e, From: w.mined[e.Position.Block]})
		}
	}
	return lives
}

// History returns the past events and the present ones, which Want returned.
func (w *World) History(present []Wanted) History {
	h := w.past
	h.Lives = append(slices.Clone(h.Lives), w.lives(present)...)
	return h
}

// lastIndexAt returns a function that asks the emitters for their counts at the end of a block.
func (w *World) lastIndexAt(ctx context.Context, block uint64) CountedBefore {
	return func(registry common.Address, agentID *big.Int, client common.Address) (uint64, error) {
		call, err := erc8004.PackGetLastIndex(agentID, client)
		if err != nil {
			return 0, err
		}
		var answer hexutil.Bytes
		err = Ask(ctx, w.Node.URL(), &answer, "eth_call", map[string]any{"to": registry, "data": hexutil.Bytes(call)},
			hexutil.Uint64(block))
		if err != nil {
			return 0, err
		}
		return erc8004.UnpackGetLastIndex(answer)
	}
}

// Read returns the plain reading of the whole branch.
func (w *World) Read(ctx context.Context) ([]types.Log, error) {
	head, err := Head(ctx, w.Node.URL())
	if err != nil {
		return nil, err
	}
	return ReadBlocks(ctx, w.Node.URL(), w.First, head, w.Deployment)
}
