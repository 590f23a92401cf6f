package chain

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/erc8004"
)

// TestBlockTime measures the block time of chains of every pace, and checks that false answers stay within bounds.
func TestBlockTime(t *testing.T) {
	t.Parallel()
	const unknown = 424242
	dropped := func(from uint64) func(uint64) (any, *nodeError) {
		return func(n uint64) (any, *nodeError) {
			if n < from {
				return nil, &nodeError{4444, "pruned history unavailable"}
			}
			seconds := 1_700_000_000 + n*2
			return map[string]any{"number": hexutil.EncodeUint64(n), "hash": blockHash(n), "timestamp": hexutil.EncodeUint64(seconds)}, nil
		}
	}
	for name, c := range map[string]struct {
		node *scriptedNode
		want time.Duration
	}{
		"12 s":                         {&scriptedNode{chain: 1, head: 1_000_000, pace: 12 * time.Second}, 12 * time.Second},
		"2 s":                          {&scriptedNode{chain: 10, head: 1_000_000, pace: 2 * time.Second}, 2 * time.Second},
		"0.2 s":                        {&scriptedNode{chain: 8453, head: 1_000_000, pace: 200 * time.Millisecond}, 200 * time.Millisecond},
		"0.09 s":                       {&scriptedNode{chain: 4663, head: 1_000_000, pace: 90 * time.Millisecond}, 90 * time.Millisecond},
		"a chain that became faster":   {&scriptedNode{chain: 1, head: 1_000_000, pace: 6 * time.Second}, 6 * time.Second},
		"a chain that is not known":    {&scriptedNode{chain: unknown, head: 1_000_000, pace: 700 * time.Millisecond}, 700 * time.Millisecond},
		"a young chain":                {&scriptedNode{chain: unknown, head: 300, pace: 5 * time.Second}, 5 * time.Second},
		"a chain of few blocks":        {&scriptedNode{chain: unknown, head: 20, pace: 5 * time.Second}, defaultBlockTime},
		"older blocks are dropped":     {&scriptedNode{chain: unknown, head: 1_000_000, pruned: dropped(999_900)}, 2 * time.Second},
		"an absurdly fast chain":       {&scriptedNode{chain: 1, head: 1_000_000, pace: time.Millisecond}, 1200 * time.Millisecond},
		"an absurdly slow chain":       {&scriptedNode{chain: 1, head: 10_000, pace: time.Hour}, 2 * time.Minute},
		"an absurdly fast unknown one": {&scriptedNode{chain: unknown, head: 1_000_000, pace: time.Millisecond}, minBlockTime},
		"an absurdly slow unknown one": {&scriptedNode{chain: unknown, head: 10_000, pace: time.Hour}, maxBlockTime},
		"all blocks of one time":       {&scriptedNode{chain: 8453, head: 1_000_000}, 200 * time.Millisecond},
		"a quiet chain":                {&scriptedNode{chain: 42161, head: 1_000_000, pace: time.Minute}, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.node.headAt = time.Now()
			got := newScriptedPool(t, c.node).BlockTime(t.Context())
			if difference := (got - c.want).Abs(); difference > c.want/100 {
				t.Errorf("measured %s, want %s", got, c.want)
			}
		})
	}
}

// TestBlockTimeIsCached: the client measures once for all callers. If no node answers, it returns the last measurement,
// or the chain's default block time.
func TestBlockTimeIsCached(t *testing.T) {
	t.Parallel()
	node := &scriptedNode{chain: 8453, head: 1_000_000, pace: 400 * time.Millisecond, headAt: time.Now()}
	client := newScriptedPool(t, node)
	client.BlockTime(t.Context())
	node.pace = 300 * time.Millisecond
	if got := client.BlockTime(t.Context()); got.Round(10*time.Millisecond) != 400*time.Millisecond {
		t.Errorf("asked again: %s", got)
	}
	client.blockTimes.due = time.Now()
	if got := client.BlockTime(t.Context()); got.Round(10*time.Millisecond) != 300*time.Millisecond {
		t.Errorf("not measured again: %s", got)
	}
	client.Close()
	client.blockTimes.due = time.Now()
	if got := client.BlockTime(t.Context()); got.Round(10*time.Millisecond) != 300*time.Millisecond {
		t.Errorf("forgotten while no node answers: %s", got)
	}
	away := newScriptedPool(t, node)
	away.Close()
	if known, _ := erc8004.FindChain(8453); away.BlockTime(t.Context()) != known.BlockTime {
		t.Errorf("no node answers: %s", away.BlockTime(t.Context()))
	}
}
