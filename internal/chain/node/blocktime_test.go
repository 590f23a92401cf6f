package node

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBlockTime measures the block time of chains of every pace, and checks that false answers stay within bounds.
func TestBlockTime(t *testing.T) {
	t.Parallel()
	const unknown = 424242
	now := time.Now().Truncate(time.Second).Add(time.Second / 2) // timestamps are then rounded in the same way each time
	dropped := func(from uint64) func(uint64) (any, *chaintest.Error) {
		return func(n uint64) (any, *chaintest.Error) {
			if n < from {
				return nil, &chaintest.Error{Code: 4444, Message: "pruned history unavailable"}
			}
			seconds := uint64(now.Unix()) - (1_000_000-n)*2
			return map[string]any{"number": hexutil.EncodeUint64(n), "hash": chaintest.BlockHash(n), "timestamp": hexutil.EncodeUint64(seconds)}, nil
		}
	}
	halted := func(n uint64) (any, *chaintest.Error) { // for an hour, before the last 1,000 blocks
		at := now.Add(-time.Duration(1_000_000-n) * 200 * time.Millisecond)
		if n < 999_000 {
			at = at.Add(-time.Hour)
		}
		return map[string]any{"number": hexutil.EncodeUint64(n), "hash": chaintest.BlockHash(n), "timestamp": hexutil.EncodeUint64(uint64(at.Unix()))}, nil
	}
	for name, c := range map[string]struct {
		node *chaintest.Script
		want time.Duration
	}{
		"12 s":                         {&chaintest.Script{Chain: 1, Head: 1_000_000, Pace: 12 * time.Second}, 12 * time.Second},
		"2 s":                          {&chaintest.Script{Chain: 10, Head: 1_000_000, Pace: 2 * time.Second}, 2 * time.Second},
		"0.2 s":                        {&chaintest.Script{Chain: 8453, Head: 1_000_000, Pace: 200 * time.Millisecond}, 200 * time.Millisecond},
		"0.09 s":                       {&chaintest.Script{Chain: 4663, Head: 1_000_000, Pace: 90 * time.Millisecond}, 90 * time.Millisecond},
		"a chain that became faster":   {&chaintest.Script{Chain: 1, Head: 1_000_000, Pace: 6 * time.Second}, 6 * time.Second},
		"a chain that is not known":    {&chaintest.Script{Chain: unknown, Head: 1_000_000, Pace: 700 * time.Millisecond}, 700 * time.Millisecond},
		"a young chain":                {&chaintest.Script{Chain: unknown, Head: 300, Pace: 5 * time.Second}, 5 * time.Second},
		"a chain of few blocks":        {&chaintest.Script{Chain: unknown, Head: 20, Pace: 5 * time.Second}, defaultBlockTime},
		"older blocks are dropped":     {&chaintest.Script{Chain: unknown, Head: 1_000_000, Pruned: dropped(999_900)}, 2 * time.Second},
		"a chain that halted":          {&chaintest.Script{Chain: 8453, Head: 1_000_000, Pruned: halted}, 200 * time.Millisecond},
		"an absurdly fast chain":       {&chaintest.Script{Chain: 1, Head: 1_000_000, Pace: time.Millisecond}, 1200 * time.Millisecond},
		"an absurdly slow chain":       {&chaintest.Script{Chain: 1, Head: 10_000, Pace: time.Hour}, 2 * time.Minute},
		"an absurdly fast unknown one": {&chaintest.Script{Chain: unknown, Head: 1_000_000, Pace: time.Millisecond}, minBlockTime},
		"an absurdly slow unknown one": {&chaintest.Script{Chain: unknown, Head: 10_000, Pace: time.Hour}, maxBlockTime},
		"all blocks of one time":       {&chaintest.Script{Chain: 8453, Head: 1_000_000}, 200 * time.Millisecond},
		"a quiet chain":                {&chaintest.Script{Chain: 42161, Head: 1_000_000, Pace: time.Minute}, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.node.HeadAt = now
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
	node := &chaintest.Script{Chain: 8453, Head: 1_000_000, Pace: 400 * time.Millisecond, HeadAt: time.Now()}
	client := newScriptedPool(t, node)
	client.BlockTime(t.Context())
	node.Pace = 300 * time.Millisecond
	heraldtest.Equal(t, "asked again", client.BlockTime(t.Context()).Round(10*time.Millisecond), 400*time.Millisecond)
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
