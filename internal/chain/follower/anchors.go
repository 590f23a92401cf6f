package follower

import (
	"slices"
	"time"

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
