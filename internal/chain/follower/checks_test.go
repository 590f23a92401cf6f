package follower

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// wakeEach returns a channel that wakes a follower every pace, and a function that stops it.
func wakeEach(ctx context.Context, pace time.Duration) (<-chan struct{}, func()) {
	woken, done := make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for loop.Pause(ctx, pace) == nil {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}()
	return woken, func() { cancel(); <-done }
}

// TestShareOfChecks: the checks cover every block if the budget suffices, and otherwise a random share of them. The
// follower keeps few headers in memory, even if it can read the receipts of fewer blocks than the chain makes. The
// others stay unchecked, so that they can be drawn later.
func TestShareOfChecks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pace    time.Duration
		full    bool
		carries int // transactions in a block
		least   float64
		most    float64
	}{
		"12 s": {12 * time.Second, true, 0, 0.9, 1}, "2 s": {2 * time.Second, true, 0, 0.9, 1}, "1 s": {time.Second, true, 0, 0.9, 1},
		"0.2 s": {200 * time.Millisecond, false, 0, 0.75, 0.95}, "0.2 s, full": {200 * time.Millisecond, true, 0, 0.35, 0.5},
		"0.09 s, full": {90 * time.Millisecond, true, 0, 0.15, 0.25}, "Base": {1900 * time.Millisecond, true, 300, 0.1, 1},
		"BSC": {450 * time.Millisecond, true, 200, 0.1, 1}, "0.2 s, small blocks": {200 * time.Millisecond, true, 10, 0.1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, c.pace)
				s.full, s.carries, s.finality = c.full, c.carries, time.Minute
				f, _ := newStubFollower(t, newStubReader(t, false, s), Config{From: s.head()})
				from, within := f.next, 8*time.Minute
				if c.carries > 0 {
					within = 30 * time.Minute
				}
				followFor(t, f, within)
				report := f.checks.reportChecks(f.next)
				unchecked := float64(report.Unchecked) / float64(f.next-from)
				if report.Share < c.least || report.Share > c.most || c.carries == 0 && 1-unchecked < report.Share-0.1 {
					t.Errorf("%.2f of %d blocks are unchecked: %+v", unchecked, f.next-from, report)
				}
				if n := len(f.checks.suspects); n > proofCalls {
					t.Errorf("%d headers are in memory, at most %d are wanted", n, proofCalls)
				}
			})
		})
	}
}

// followFor runs the follower for the duration within.
func followFor(t *testing.T, f *Follower, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_ = f.Follow(ctx)
}

// TestOmissionIsFound: checks of single blocks, final or not, or another node's answer find logs that a node omits.
// Then the follower reads everything since the last complete check again, and marks the node.
func TestOmissionIsFound(t *testing.T) {
	t.Parallel()
	const finality = 2 * time.Minute
	for name, c := range map[string]struct {
		finality time.Duration
		nodes    int
		behind   uint64
	}{
		"one node": {finality, 1, 0}, "one node that names nothing final": {0, 1, 0}, "one node, all is final": {time.Second, 1, 0},
		"two nodes": {finality, 2, 0}, "two nodes, one is some blocks behind": {finality, 2, 3},
		"two nodes, one is far behind": {finality, 2, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stubs []*chainStub
				for range c.nodes {
					s := newChainStub(t, 2*time.Second)
					s.every, s.finality = 10, c.finality
					stubs = append(stubs, s)
				}
				lies := true
				from := stubs[0].head()
				first := (from/100 + 1) * 100
				stubs[0].hides = func(n uint64) bool { return lies && n%100 == 0 && n > from }
				if c.nodes > 1 {
					stubs[1].behind = c.behind
				}
				reader := newStubReader(t, false, stubs...)
				f, got := newStubFollower(t, reader, Config{From: from})
				followFor(t, f, time.Duration(first-from)*2*time.Second+finality+time.Minute)
				lies = false
				followFor(t, f, 2*finality)
				for n := (from + 9) / 10 * 10; n < f.next; n += 10 {
					if got.events[n] != 1 && got.found[n] == 0 {
						t.Errorf("the log of block %d of %d to %d is missing", n, from, f.next-1)
					}
				}
				omission := f.checks.omission
				if omission == nil || omission.Node != 1 || omission.Block%100 != 0 {
					t.Errorf("%+v", omission)
				}
				if c.nodes > 1 { // the node that left out logs is asked last
					stubs[0].Set(nil, stubs[0].answerCall)
					if _, err := reader.ReadHead(t.Context()); err != nil || stubs[0].Count() > 0 {
						t.Errorf("node 1 is still asked first, or %v", err)
					}
				}
				if report := f.checks.reportChecks(f.next); report.Unchecked > 30 || report.Recheck != nil {
					t.Errorf("%+v", report)
				}
			})
		})
	}
}

// TestChecksSkipAnUnreadableBlock: checks find an omission although the request for the receipts of another block always
// fails. If the receipts are too large, the block's logs are compared instead. After other failures, the block counts as
// unchecked.
func TestChecksSkipAnUnreadableBlock(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(types.Receipts) (any, any){
		"too large": func(receipts types.Receipts) (any, any) {
			receipts[0].Logs = append(receipts[0].Logs, &types.Log{Topics: []common.Hash{}, Data: make([]byte, 9<<20)})
			return receipts, nil
		},
		"rate limit": func(types.Receipts) (any, any) {
			return nil, chaintest.Error{Code: http.StatusTooManyRequests, Message: "too many requests"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, 2*time.Second)
				s.every, s.finality = 10, time.Minute
				from := s.head()
				unreadable := (from/10 + 1) * 10
				omitted := unreadable + 60
				s.hides = func(n uint64) bool { return n == omitted }
				asked := 0
				s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
					var hash common.Hash
					if method == "eth_getBlockReceipts" && json.Unmarshal(params[0], &hash) == nil && hash == s.hashOf(unreadable) {
						asked++
						return spoil(s.receiptsOf(unreadable))
					}
					return s.answerCall(method, params)
				})
				f, _ := newStubFollower(t, newStubReader(t, false, s), Config{From: from})
				followFor(t, f, 15*time.Minute)
				if omission := f.checks.omission; asked == 0 || omission == nil || omission.Block != omitted {
					t.Errorf("asked %d times, the omission is %+v", asked, omission)
				}
			})
		})
	}
}

// TestOldBlocksAreChecked: blocks that an earlier follower left unchecked are checked once they are final, and their
// logs are passed to Handle.
func TestOldBlocksAreChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		s.every, s.finality = 10, time.Minute
		next := s.head() - 100
		f, got := newStubFollower(t, newStubReader(t, false, s), Config{From: 1, Checks: &Checks{Complete: next - 500, Unchecked: 499},
			Anchors: []Anchor{{Number: next - 1, Hash: s.hashOf(next - 1), Time: s.seconds(next - 1)}}})
		for n := next - 500; n < next; n++ {
			got.events[n] = 1
		}
		followFor(t, f, 20*time.Minute)
		if found := got.found; len(found) < 49 || len(found) > 51 || f.checks.omission != nil {
			t.Errorf("%d of 50 blocks: %v, %+v", len(found), found, f.checks.omission)
		}
		if report := f.checks.reportChecks(f.next); report.Complete+60 < f.next {
			t.Errorf("%+v at block %d", report, f.next)
		}
	})
}

// TestReorgIsNoOmission: a check of blocks that a reorg has just replaced does not mark the node.
func TestReorgIsNoOmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, time.Second)
		s.every = 3
		f, got := newStubFollower(t, newStubReader(t, false, s), Config{From: s.head() - 20})
		readToHead(t, f)
		s.fork = f.next - 15
		for range 10 {
			if err := f.checkBlocks(t.Context()); err != nil && err != eventlog.ErrReorganised {
				t.Log(err)
			}
		}
		if f.checks.omission != nil {
			t.Errorf("%+v", f.checks.omission)
		}
		followFor(t, f, time.Minute)
		if report := f.checks.reportChecks(f.next); f.checks.omission != nil || report.Unchecked > 3 || len(got.events) < 20 {
			t.Errorf("%+v, %d events", report, len(got.events))
		}
	})
}

// TestUncheckedBlocks: drawBlocks returns random blocks of the newest window that were added and not removed.
func TestUncheckedBlocks(t *testing.T) {
	t.Parallel()
	var u uncheckedBlocks
	u.addRange(10, 20)
	u.addRange(21, 30)
	u.addRange(5, 12)
	u.addRange(40, 50)
	u.removeRange(15, 44)
	u.addRange(0, 0)
	heraldtest.Equal(t, "the spans", u.spans, []span{{0, 0}, {5, 14}, {45, 50}})
	heraldtest.Equal(t, "the blocks", u.countBlocks(), 17)
	drawn, err := u.drawBlocks(100, 0, 48)
	slices.Sort(drawn)
	want := []uint64{0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 45, 46, 47, 48}
	if err != nil || !slices.Equal(drawn, want) || u.countBlocks() != 2 {
		t.Errorf("%v, %v, %v", drawn, u.spans, err)
	}
	u = uncheckedBlocks{}
	u.addRange(1, 100_000)
	seen := map[uint64]bool{}
	for range 100 {
		drawn, err := u.drawBlocks(5, 0, 90_000)
		if err != nil || len(drawn) != 5 {
			t.Fatal(drawn, err)
		}
		for _, n := range drawn {
			if seen[n] || n > 90_000 || n < 90_000-drawWindow-500 {
				t.Errorf("block %d is drawn", n)
			}
			seen[n] = true
		}
	}
	for n := uint64(0); n < 3*mostSpans; n++ {
		u.removeRange(2*n, 2*n)
		u.addRange(200_000+2*n, 200_000+2*n)
	}
	if len(u.spans) > mostSpans+1 || u.spans[len(u.spans)-1].to != 200_000+2*(3*mostSpans-1) {
		t.Errorf("%d spans", len(u.spans))
	}
}
