package follower

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/ethereum/go-ethereum/common"
)

// Anchor identifies a block that the follower handed over. A block with the same number and another hash means that a
// reorg replaced the anchor.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // the block's timestamp in seconds; 0 if it is unknown
}

const (
	// reorgMemory is the minimum time that the anchors span. After a deeper reorg, the follower reads again from the
	// settled block.
	reorgMemory = time.Hour
	// settleAfter is the minimum age of a settled block, relative to the finalized block, or to the head if no block
	// is finalized.
	settleAfter = 30 * time.Minute
	// mostFuture is the tolerance for timestamps in the future. thinAnchors accepts the newest block's timestamp up
	// to mostFuture after the current time or after the previous anchor's timestamp, whichever is later.
	mostFuture = time.Minute
	// mostAnchors bounds the number of anchors if their timestamps are wrong. Anchors that span an hour number about
	// 25.
	mostAnchors = 64
)

// thinAnchors drops anchors so that the remaining ones are dense near the newest block and sparse near the oldest. It
// drops an anchor if its older neighbour is at most twice as old as its newer neighbour. So a reorg is read again
// from at most twice its depth, and the number of anchors grows with the logarithm of the time. It also drops the
// anchors before the newest one that is both settled and at least reorgMemory old. The argument and the result are
// sorted from old to new.
func thinAnchors(anchors []Anchor, settled uint64, now time.Time) []Anchor {
	newest := len(anchors) - 1
	if newest < 1 {
		return anchors
	}
	// A node may invent a timestamp. On development chains, the timestamps of all blocks are ahead of the clock.
	seconds := min(anchors[newest].Time,
		max(uint64(max(now.Unix(), 0)), anchors[newest-1].Time)+uint64(mostFuture.Seconds()))
	age := func(a Anchor) uint64 { return seconds - min(seconds, a.Time) }

	kept := []Anchor{anchors[newest]} // newest first
	for i := newest - 1; i >= 0; i-- {
		newer, older := kept[len(kept)-1], i-1
		if older >= 0 && age(anchors[older]) <= 2*age(newer) {
			continue
		}
		kept = append(kept, anchors[i])
		if age(anchors[i]) >= uint64(reorgMemory.Seconds()) && anchors[i].Number <= settled {
			break
		}
	}
	kept = kept[:min(len(kept), mostAnchors)]
	slices.Reverse(kept)
	return kept
}

// dropAnchors drops all but the first keep anchors. The next reading begins after the last remaining anchor.
func (f *Follower) dropAnchors(keep int) {
	if keep == len(f.done) {
		return
	}
	replaced := f.done[keep]
	f.done = f.done[:keep:keep]
	if keep > 0 {
		f.next = f.done[keep-1].Number + 1
	} else {
		f.next = max(f.cfg.From, min(f.settled+1, replaced.Number))
	}
	if f.checks != nil {
		f.checks.rewindChecks(f.next)
	}
}

// rewindToCanonical returns the follower to the newest handed-over block that is still canonical. last is the block
// that now has the number of the newest anchor.
func (f *Follower) rewindToCanonical(ctx context.Context, last *node.Block) error {
	high := len(f.done) - 1 // the anchor at high and those above are replaced
	switch {
	case high < 0:
		return nil
	case last == nil:
		return f.reader.NewUnavailable("looking for a reorg", node.ErrNoBlock)
	case last.Hash == f.done[high].Hash:
		return nil
	}
	for low := 0; low < high; { // the anchors below low are canonical
		middle := (low + high) / 2
		b, err := f.reader.ReadBlock(ctx, f.done[middle].Number)
		switch {
		case err != nil:
			return err
		case b == nil:
			return f.reader.NewUnavailable("looking for a reorg", node.ErrNoBlock)
		case b.Hash == f.done[middle].Hash:
			low = middle + 1
		default:
			high = middle
		}
	}
	replaced := f.done[high]
	f.strictBefore = max(f.strictBefore, f.next)
	f.dropAnchors(high)
	f.log.Info("a block was replaced, reading again", "block", replaced.Number, "from", f.next)
	if replaced.Number <= f.settled {
		f.log.Error("a reorg replaced settled blocks: deliveries of their events are not taken back",
			"block", replaced.Number, "settled", f.settled)
	}
	return nil
}

// askFinalized reads the finalized block at most once per finalizedPause. If no node answers, the previous value
// stays.
func (f *Follower) askFinalized(ctx context.Context) {
	now := time.Now()
	if now.Sub(f.finalizedAsked) < finalizedPause {
		return
	}
	f.finalizedAsked = now
	b, err := f.reader.ReadTagged(ctx, node.Finalized)
	switch {
	case err != nil:
		f.log.Debug("the finalized block is not known anew", "error", err)
	case b != nil:
		if uint64(b.Number) >= f.finalized {
			f.finalized, f.finalizedTime = uint64(b.Number), uint64(b.Time)
		}
	}
}

// findSettledBlock returns the newest anchor that is settleAfter older than the finalized block, or than the head if
// no block is final. The head's timestamp counts as now if it is in the future, since a node may invent it. The
// settled block never moves back.
func (f *Follower) findSettledBlock(anchors []Anchor, head node.Block) uint64 {
	newest := min(uint64(head.Time), uint64(max(time.Now().Unix(), 0)))
	if f.finalized > 0 {
		newest = min(newest, f.finalizedTime)
	}
	for _, a := range slices.Backward(anchors) {
		isFinal := f.finalized == 0 || a.Number <= f.finalized
		if isFinal && a.Time > 0 && a.Time+uint64(settleAfter.Seconds()) <= newest {
			return max(f.settled, a.Number)
		}
	}
	return f.settled
}

// isStrict reports whether all next blocks are checked before they are handed over. This is the case during a
// backfill without another node to compare with, and for blocks that are read again after a reorg, or because a node
// left out logs.
func (f *Follower) isStrict() bool {
	if f.reader.Trusted {
		return false
	}
	return f.next < f.strictBefore || f.checks == nil && f.reader.CountNodes() == 1
}

// checkStart fails once the head has stayed below the first block for lowHeadTimeout: that block never was the head.
func (f *Follower) checkStart(head uint64) error {
	if !f.cfg.FromHead || len(f.done) > 0 || head+1 >= f.next {
		return nil
	}
	now := time.Now()
	if f.lowSince.IsZero() {
		f.lowSince = now
	}
	if now.Sub(f.lowSince) < f.lowHeadTimeout {
		return nil
	}
	return &handError{fmt.Errorf("block %d, head %d: %w", f.next, head, ErrStartAboveHead)}
}
