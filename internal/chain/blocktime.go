package chain

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
)

const (
	// blockTimeSpan is how many blocks lie between the two headers that the block time is measured with. Timestamps are in
	// seconds: at 0.09 s a block the error is below one percent.
	blockTimeSpan = 4096
	// minBlockTimeSpan is the smallest span that is measured, of a young chain or a node that dropped older blocks.
	minBlockTimeSpan = 64
	// blockTimeRefresh is how long a measured block time is used, and blockTimeRetry the pause after a failure.
	blockTimeRefresh = 10 * time.Minute
	blockTimeRetry   = time.Minute
	// defaultBlockTime is used until the block time of a chain is measured of which nothing is known.
	defaultBlockTime = 2 * time.Second
	// maxBlockTimeFactor bounds a measured block time, since a node may lie: it is at most so many times longer or shorter than
	// the chain's usual one.
	maxBlockTimeFactor = 10
	// minBlockTime and maxBlockTime bound it where the usual one is not known.
	minBlockTime = 10 * time.Millisecond
	maxBlockTime = time.Minute
)

// blockTimer caches the measured block time of a chain.
type blockTimer struct {
	measuring chan struct{} // holds one token: its holder measures

	mu       sync.Mutex
	measured time.Duration // 0: not yet
	due      time.Time     // when it is measured again
}

func newBlockTimer() *blockTimer { return &blockTimer{measuring: make(chan struct{}, 1)} }

// load returns the block time that was measured, and whether it is to be measured again.
func (t *blockTimer) load(now time.Time) (measured time.Duration, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.measured, !now.Before(t.due)
}

// store caches a measurement; 0: it failed.
func (t *blockTimer) store(now time.Time, measured time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = now.Add(blockTimeRetry)
	if measured > 0 {
		t.measured, t.due = measured, now.Add(blockTimeRefresh)
	}
}

// BlockTime returns the time from one block of the chain to the next. It is measured with two headers, at most every 10
// minutes, and bounded by the chain's usual one. One caller measures; others wait for the first measurement only. It is
// the chain's usual block time while no node answers.
func (c *Client) BlockTime(ctx context.Context) time.Duration {
	measured, due := c.blockTimes.load(time.Now())
	if due && c.beginMeasuring(ctx, measured == 0) {
		defer func() { <-c.blockTimes.measuring }()
		if measured, due = c.blockTimes.load(time.Now()); due {
			if found := c.measureBlockTime(ctx); ctx.Err() == nil {
				c.blockTimes.store(time.Now(), found)
			}
			measured, _ = c.blockTimes.load(time.Now())
		}
	}
	return boundBlockTime(c.known, measured)
}

// beginMeasuring takes the token of blockTimer, and waits for it if wait is set.
func (c *Client) beginMeasuring(ctx context.Context, wait bool) bool {
	select {
	case c.blockTimes.measuring <- struct{}{}:
		return true
	default:
	}
	if !wait {
		return false
	}
	select {
	case c.blockTimes.measuring <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// measureBlockTime reads the head and an older block; 0 if no node has both, or their times are equal.
func (c *Client) measureBlockTime(ctx context.Context) time.Duration {
	head, err := c.readHead(ctx)
	if err != nil {
		c.log.Debug("the block time is not measured", "chain", c.chainID, "error", err)
		return 0
	}
	for _, span := range []uint64{blockTimeSpan, 256, minBlockTimeSpan} {
		if uint64(head.Number) <= span { // the first block's time may be any
			continue
		}
		older, err := c.readBlock(ctx, formatNumber(uint64(head.Number)-span))
		var answered *rpcError
		if err != nil && !errors.As(err, &answered) { // else the node may have dropped the block
			c.log.Debug("the block time is not measured", "chain", c.chainID, "error", err)
			return 0
		}
		if older != nil && older.Time < head.Time {
			seconds := min(uint64(head.Time-older.Time), math.MaxInt64/uint64(time.Second))
			return time.Duration(seconds) * time.Second / time.Duration(span)
		}
	}
	return 0
}

// boundBlockTime bounds a measured block time (0: none) by the chain's usual one. A quiet chain makes blocks at its usual
// pace as soon as there are transactions, so it never counts as slower.
func boundBlockTime(known erc8004.Chain, measured time.Duration) time.Duration {
	usual, low, high := known.BlockTime, minBlockTime, maxBlockTime
	if usual > 0 {
		low, high = usual/maxBlockTimeFactor, usual*maxBlockTimeFactor
	} else {
		usual = defaultBlockTime
	}
	switch {
	case measured == 0:
		return usual
	case known.Quiet:
		high = usual
	}
	return min(max(measured, low), high)
}

// countBlocks returns how many blocks the chain makes in a time, rounded up.
func (c *Client) countBlocks(ctx context.Context, d time.Duration) uint64 {
	each := c.BlockTime(ctx)
	return uint64((d + each - 1) / each)
}

// estimateTime returns how long so many blocks take, at most maxEstimate: the number may be anything that a node or a job
// says.
func (c *Client) estimateTime(ctx context.Context, blocks uint64) time.Duration {
	each := c.BlockTime(ctx)
	return time.Duration(min(blocks, uint64(maxEstimate/each))) * each
}

// maxEstimate bounds estimateTime.
const maxEstimate = 24 * time.Hour
