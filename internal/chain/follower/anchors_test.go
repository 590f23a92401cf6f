package follower

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// paces are the tested block times: those of Ethereum, OP Mainnet, Base and Robinhood.
var paces = []time.Duration{12 * time.Second, 2 * time.Second, 200 * time.Millisecond, 90 * time.Millisecond}

// readFor returns the anchors of a follower that reads a chain for the duration within, with one reading every pause.
func readFor(pace, pause, within time.Duration, settled func(now uint64) uint64) (anchors []Anchor, now time.Time) {
	const first = 1_800_000_000
	last := uint64(0)
	for at := time.Duration(0); at < within; at += pause {
		number := uint64(at/pace) + 1
		now = time.Unix(first, 0).Add(at)
		if number == last {
			continue
		}
		last = number
		seconds := uint64(first + (time.Duration(number-1)*pace)/time.Second)
		anchors = thinAnchors(append(anchors, Anchor{number, chaintest.BlockHash(number), seconds}), settled(number), now)
	}
	return anchors, now
}

// TestAnchors: at every block time about 30 anchors cover the last hour. The distance from a block to the next anchor
// below it is at most the distance from the newest block to that block.
func TestAnchors(t *testing.T) {
	t.Parallel()
	for _, pace := range paces {
		for _, pause := range []time.Duration{time.Second, 2 * time.Second} {
			anchors, _ := readFor(pace, pause, 3*time.Hour, func(n uint64) uint64 { return n - min(n, uint64(30*time.Minute/pace)) })
			if len(anchors) > 32 {
				t.Errorf("%s: %d anchors", pace, len(anchors))
			}
			newest := anchors[len(anchors)-1]
			if age := time.Duration(newest.Time-anchors[0].Time) * time.Second; age < reorgMemory || age > 3*reorgMemory {
				t.Errorf("%s: they reach back %s", pace, age)
			}
			for i := len(anchors) - 2; i > 0; i-- {
				depth, next := newest.Number-anchors[i].Number, newest.Number-anchors[i-1].Number
				if unit := uint64(2*max(pause, pace)/pace) + 1; next > 2*depth+2*unit+uint64(2*time.Second/pace) {
					t.Errorf("%s: a reorg of %d blocks is read again from %d", pace, depth+1, next)
				}
			}
		}
	}
}

// TestAnchorsWithFalseTimestamps: neither a timestamp that a node invents nor anchors without timestamps, which an
// earlier version stored, remove an anchor that a reorg of the last hour needs.
func TestAnchorsWithFalseTimestamps(t *testing.T) {
	t.Parallel()
	anchors, now := readFor(2*time.Second, 2*time.Second, 2*time.Hour, func(uint64) uint64 { return 0 })
	before := slices.Clone(anchors)
	newest := before[len(before)-1]
	after := thinAnchors(append(anchors, Anchor{newest.Number + 1, common.Hash{}, 1 << 40}), 1<<62, now)
	if oldest := after[0]; newest.Time-oldest.Time < uint64(reorgMemory.Seconds()) || len(after) < 8 {
		t.Errorf("%d anchors are left, the oldest is block %d", len(after), oldest.Number)
	}
	bare := make([]Anchor, 256)
	for i := range bare {
		bare[i].Number = uint64(i)
	}
	after = thinAnchors(append(bare, Anchor{256, common.Hash{}, uint64(now.Unix())}), 0, now)
	heraldtest.Equal(t, "the first anchor", after[0].Number, 0)
	heraldtest.Equal(t, "the last anchor", after[len(after)-1].Number, 256)
}

// readStub returns a chain that is some hours old, and a follower that has read the last read of it, in ranges of a
// minute.
func readStub(t *testing.T, pace, finality, read time.Duration) (*chainStub, *Follower) {
	t.Helper()
	s := newChainStub(t, pace)
	s.finality = finality
	f, _ := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head() - uint64(read/pace)})
	f.width = newRangeWidth(uint64(max(time.Minute/pace, 1)))
	readToHead(t, f)
	return s, f
}

// TestSettledBlocksAtEveryBlockTime: at every block time, blocks are settled 30 minutes below the finalized block, or
// below the head without one. The fork point of a reorg within the last hour is found with few requests.
func TestSettledBlocksAtEveryBlockTime(t *testing.T) {
	t.Parallel()
	for _, pace := range paces {
		for _, finality := range []time.Duration{0, 20 * time.Minute} {
			t.Run(fmt.Sprintf("%s/%s", pace, finality), func(t *testing.T) {
				t.Parallel()
				s, f := readStub(t, pace, finality, 3*time.Hour)
				settled := time.Duration(f.next-1-f.settled) * pace
				if least := finality + settleAfter; settled < least-time.Minute || settled > 2*least+2*time.Minute {
					t.Errorf("%s under the newest block are settled", settled)
				}
				s.fork = f.next - uint64(50*time.Minute/pace)
				s.asked = nil
				_, err := f.readNext(t.Context())
				heraldtest.Must(t, err)
				if f.next > s.fork+uint64(2*time.Minute/pace) || len(s.asked) > 14 {
					t.Errorf("read up to %d after a reorg from %d, %d blocks are asked for", f.next, s.fork, len(s.asked))
				}
			})
		}
	}
}

// TestFutureHeadSettlesNoBlock: a head with an invented timestamp far in the future settles no block.
func TestFutureHeadSettlesNoBlock(t *testing.T) {
	t.Parallel()
	_, f := readStub(t, 2*time.Second, 0, 20*time.Minute)
	before := f.settled
	late := node.Block{Time: 1 << 40}
	heraldtest.Equal(t, "the settled block", f.findSettledBlock(f.done, late), before)
}
