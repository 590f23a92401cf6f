package node

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
)

const (
	// blockTimeSpan is the number of blocks between the two headers from which the block time is measured. Timestamps
	// have a resolution of one second; with blocks of 0.09 s the error is below one percent.
	blockTimeSpan = 4096
	// minBlockTimeSpan is the smallest span that is used, for a young chain or a node that dropped older blocks.
	minBlockTimeSpan = 64
	// blockTimeRefresh is how long a measured block time is used. blockTimeRetry is the pause after a failed
	// measurement.
	blockTimeRefresh = 10 * time.Minute
	blockTimeRetry   = time.Minute
	// defaultBlockTime is used for an unknown chain until its block time is measured.
	defaultBlockTime = 2 * time.Second
	// maxBlockTimeFactor bounds a measured block time, because a node may lie. The result is at most this many times
	// longer or shorter than the chain's usual block time.
	maxBlockTimeFactor = 10
	// minBlockTime and maxBlockTime bound the measurement if the chain's usual block time is unknown.
	minBlockTime = 10 * time.Millisecond
	maxBlockTime = time.Minute
)

// blockTimer caches the measured block time of a chain.
type blockTimer struct {
	measuring chan struct{} // holds one token; the caller that put it there measures

	mu       sync.Mutex
	measured time.Duration // 0 until the first measurement succeeds
	due      time.Time     // when the next measurement is due
}

func newBlockTimer() *blockTimer { return &blockTimer{measuring: make(chan struct{}, 1)} }

// loadBlockTime returns the measured block time and whether the next measurement is due.
func (t *blockTimer) loadBlockTime(now time.Time) (measured time.Duration, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.measured, !now.Before(t.due)
}

// storeBlockTime caches a measurement. A measurement of 0 means that it failed.
func (t *blockTimer) storeBlockTime(now time.Time, measured time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = now.Add(blockTimeRetry)
	if measured > 0 {
		t.measured, t.due = measured, now.Add(blockTimeRefresh)
	}
}

// BlockTime returns the time between two successive blocks of the chain. It measures the time from two headers, at
// most every 10 minutes, and bounds it by the chain's usual block time. One caller measures. Other callers use the
// previous result, and wait only if no result exists yet. While no node answers, BlockTime returns the previous
// result, or the chain's usual block time.
func (p *Pool) BlockTime(ctx context.Context) time.Duration {
	measured, due := p.blockTimes.loadBlockTime(time.Now())
	if due && p.beginMeasuring(ctx, measured == 0) {
		defer func() { <-p.blockTimes.measuring }()
		if measured, due = p.blockTimes.loadBlockTime(time.Now()); due {
			if found := p.measureBlockTime(ctx); ctx.Err() == nil {
				p.blockTimes.storeBlockTime(time.Now(), found)
			}
			measured, _ = p.blockTimes.loadBlockTime(time.Now())
		}
	}
	return boundBlockTime(p.known, measured)
}

// beginMeasuring puts the token into blockTimer.measuring and reports whether it did. If another caller is measuring,
// it waits only if wait is set.
func (p *Pool) beginMeasuring(ctx context.Context, wait bool) bool {
	select {
	case p.blockTimes.measuring <- struct{}{}:
		return true
	default:
	}
	if !wait {
		return false
	}
	select {
	case p.blockTimes.measuring <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// measureBlockTime computes the block time from the head and older blocks. It returns 0 if no node has them, or if
// their timestamps are equal. If the chain halted within a longer span, a shorter one shows its block time. Otherwise
// an event would need fewer confirmations after a halt, when reorgs are likely.
func (p *Pool) measureBlockTime(ctx context.Context) time.Duration {
	head, err := p.ReadHead(ctx)
	if err != nil {
		p.log.Debug("the block time is not measured", "chain", p.chainID, "error", err)
		return 0
	}
	var measured time.Duration
	for _, span := range []uint64{blockTimeSpan, 256, minBlockTimeSpan} {
		if uint64(head.Number) <= span { // the first block may have any timestamp
			continue
		}
		older, err := p.ReadBlock(ctx, uint64(head.Number)-span)
		var answered *rpcError
		if err != nil && !errors.As(err, &answered) { // an answered error may mean that the node dropped the block
			p.log.Debug("the block time is not measured", "chain", p.chainID, "error", err)
			return measured
		}
		if older == nil || older.Time >= head.Time {
			continue
		}
		seconds := min(uint64(head.Time-older.Time), math.MaxInt64/uint64(time.Second))
		each := time.Duration(seconds) * time.Second / time.Duration(span)
		if measured == 0 || each < measured*2/3 { // a smaller difference may be due to rounding
			measured = each
		}
	}
	return measured
}

// boundBlockTime bounds a measured block time by the chain's usual one. A measured time of 0 means that there is no
// measurement. A quiet chain makes blocks at its usual pace as soon as it has transactions, so the result for a quiet
// chain is never longer than the usual block time.
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
