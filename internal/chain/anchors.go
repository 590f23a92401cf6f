package chain

import (
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Anchor is a block that was handed over, by its hash: when another block has its number, there was a reorg.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // the block's timestamp; 0: unknown
}

const (
	// reorgMemory is how far back anchors reach at least. A deeper reorg is read again from the settled block.
	reorgMemory = time.Hour
	// settleAfter is how much older than the finalized block, or than the head, a settled block is.
	settleAfter = 30 * time.Minute
	// mostFuture bounds how far the newest block's timestamp is believed to be after now, or after the block before it.
	mostFuture = time.Minute
	// mostAnchors bounds the anchors if their timestamps are wrong. A locator of an hour has about 25.
	mostAnchors = 64
)

// thinAnchors drops anchors so that those left are dense at the newest one and sparse at the oldest: one goes when
// its older neighbour is at most twice as old as its newer one. So a reorg is read again from at most twice its depth,
// and the number of anchors grows with the logarithm of the time. Anchors go that are older
// than the newest settled one beyond reorgMemory. Argument and result are sorted from old to new.
func thinAnchors(anchors []Anchor, settled uint64, now time.Time) []Anchor {
	newest := len(anchors) - 1
	if newest < 1 {
		return anchors
	}
	// A node may invent a timestamp. Development chains are ahead of the clock with all of their blocks.
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
