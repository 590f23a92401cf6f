package follower

import (
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
)

// handedRange is a range of blocks whose logs came from one node.
type handedRange struct {
	span
	hash common.Hash // of the last block; zero if it is unknown
	node int
}

// suspect is a block whose bloom may contain an event.
type suspect struct {
	*eventlog.Header
	// its receipts are too large or cannot be decoded, so eth_getLogs by the block's hash is compared instead
	byHash bool
	tries  int
}

// checker finds logs that nodes left out of the ranges that a follower handed over.
type checker struct {
	unchecked uncheckedBlocks
	known     map[uint64][]eventlog.Position // the logs that were handed over of unchecked blocks from knownFrom on
	held      int                            // the number of positions in known
	knownFrom uint64
	readers   []handedRange // of blocks from knownFrom on, oldest first

	compareFrom  uint64 // the first block that was not compared with another node
	compareWidth rangeWidth
	compareAfter time.Time
	behindSince  time.Time // since when the other node lacks blocks; zero if it does not

	open     map[uint64]bool // blocks in wanted, in suspects or in a request: neither unchecked nor checked
	wanted   []uint64        // blocks to check before any block that is drawn
	suspects []suspect
	asked    time.Time // when the reading began after which the last request was made

	recheck      *span
	recheckWidth rangeWidth
	recheckAfter time.Time
	omission     *Omission

	handed, checked float64 // newest blocks, for Share
	share           float64 // the Share that is reported while there are too few newest blocks
}

// newChecker returns a checker that continues from the known Checks of an earlier one. If known is nil, all blocks
// before next count as checked.
func newChecker(from, next uint64, known *Checks) *checker {
	k := &checker{known: map[uint64][]eventlog.Position{}, open: map[uint64]bool{}, knownFrom: next,
		compareFrom: next, compareWidth: newRangeWidth(maxRange), recheckWidth: newRangeWidth(strictWidth), share: 1}
	if known == nil {
		return k
	}
	k.omission, k.share = known.Omission, known.Share
	if first := max(known.Complete+1, from); first < next {
		k.unchecked.addRange(first, next-1)
	}
	if known.Recheck != nil {
		k.recheck = &span{known.Recheck[0], known.Recheck[1]}
	}
	return k
}

// reportChecks returns the Checks of a follower that read all blocks before next.
func (k *checker) reportChecks(next uint64) *Checks {
	left := uncheckedBlocks{slices.Clone(k.unchecked.spans)}
	for n := range k.open {
		left.addRange(n, n)
	}
	c := &Checks{Complete: next - min(next, 1), Unchecked: left.countBlocks(), Omission: k.omission}
	if len(left.spans) > 0 {
		first := left.spans[0].from
		c.Complete = first - min(first, 1)
	}
	if c.Share = k.share; k.handed >= shareOf {
		c.Share = min(k.checked/k.handed, 1)
	}
	if k.recheck != nil {
		c.Recheck = &[2]uint64{k.recheck.from, k.recheck.to}
	}
	return c
}

// noteRange records a range that was handed over unchecked.
func (k *checker) noteRange(from uint64, end Anchor, logs []types.Log, node int) {
	k.unchecked.addRange(from, end.Number)
	if k.handed += float64(end.Number - from + 1); k.handed > shareUpTo {
		k.handed, k.checked = k.handed/2, k.checked/2
	}
	if k.held+len(logs) > mostKnownLogs {
		k.known, k.held, k.readers = map[uint64][]eventlog.Position{}, 0, nil
		k.knownFrom, k.compareFrom = from, from
	}
	for _, l := range logs {
		k.known[l.BlockNumber] = append(k.known[l.BlockNumber], eventlog.PositionOf(l))
	}
	k.held += len(logs)
	if n := len(k.readers); n > 0 && k.readers[n-1].node == node && k.readers[n-1].to+1 == from {
		k.readers[n-1].to, k.readers[n-1].hash = end.Number, end.Hash
		return
	}
	k.readers = append(k.readers, handedRange{span{from, end.Number}, end.Hash, node})
	if len(k.readers) > mostReaders {
		k.readers = k.readers[1:]
	}
}

// noteChecked records that no logs are missing from the blocks.
func (k *checker) noteChecked(from, to uint64) {
	k.checked += float64(to - from + 1)
	k.dropBlocks(from, to)
}

// dropBlocks drops everything that the checker stores about the blocks.
func (k *checker) dropBlocks(from, to uint64) {
	k.unchecked.removeRange(from, to)
	maps.DeleteFunc(k.open, func(n uint64, _ bool) bool { return from <= n && n <= to })
	for n, logs := range k.known {
		if from <= n && n <= to {
			k.held -= len(logs)
			delete(k.known, n)
		}
	}
}

// rewindChecks drops the blocks from next on, which are read again.
func (k *checker) rewindChecks(next uint64) {
	k.dropBlocks(next, math.MaxUint64)
	k.knownFrom, k.compareFrom = min(k.knownFrom, next), min(k.compareFrom, next)
	k.readers = slices.DeleteFunc(k.readers, func(r handedRange) bool { return r.from >= next })
	if n := len(k.readers); n > 0 && k.readers[n-1].to >= next {
		k.readers[n-1].to, k.readers[n-1].hash = next-1, common.Hash{}
	}
	k.dropClosed()
}

// dropClosed drops blocks from the queues if they were checked in another way or will be read again.
func (k *checker) dropClosed() {
	k.wanted = slices.DeleteFunc(k.wanted, func(n uint64) bool { return !k.open[n] })
	k.suspects = slices.DeleteFunc(k.suspects, func(s suspect) bool { return !k.open[uint64(s.Number)] })
}

// findReader returns the node that a block's logs came from, or 0 if it is unknown.
func (k *checker) findReader(n uint64) int {
	for _, r := range k.readers {
		if r.from <= n && n <= r.to {
			return r.node
		}
	}
	return 0
}

// returnBlocks returns blocks to the unchecked set, so that they can be drawn again.
func (k *checker) returnBlocks(numbers ...uint64) {
	for _, n := range numbers {
		delete(k.open, n)
		k.unchecked.addRange(n, n)
	}
}

// noteUnanswered moves the first suspects to the end of the queue, because the request for them failed. If the answer
// was too large, their logs are compared instead of their receipts. After proofTries other failures, they count as
// unchecked again, so that the request for one block cannot keep all others from being checked.
func (k *checker) noteUnanswered(asked int, err error) {
	unanswered := k.suspects[:asked]
	k.suspects = slices.Clone(k.suspects[asked:])
	for _, s := range unanswered {
		switch {
		case !s.byHash && errors.Is(err, node.ErrTooLarge):
			s.byHash = true
		case s.tries < proofTries:
			s.tries++
		default:
			k.returnBlocks(uint64(s.Number))
			continue
		}
		k.suspects = append(k.suspects, s)
	}
}
