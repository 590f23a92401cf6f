package follower

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestReorgTakesNothingElseBack: after a reorg of the newest block, the follower reads older blocks again too. It takes
// none of their events back, although the node leaves out logs, or lags after a failure.
func TestReorgTakesNothingElseBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		trusted bool
		disturb func(s *chainStub, from uint64)
	}{
		"the node leaves out logs":        {false, func(s *chainStub, from uint64) { s.hides = func(n uint64) bool { return n < from+5 } }},
		"the node leaves out the newest":  {false, func(s *chainStub, from uint64) { s.hides = func(n uint64) bool { return n > from+5 } }},
		"the node fails and lags":         {false, failAndLag},
		"the trusted node fails and lags": {true, failAndLag},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, 2*time.Second)
				s.every = 1
				from := s.head() - 9
				f, got := newStubFollower(t, newStubReader(t, tt.trusted, s), Config{From: from})
				readToHead(t, f)
				s.fork = f.next - 1
				tt.disturb(s, from)
				for range 5 {
					_, _ = f.readNext(t.Context()) // an error is part of the case
				}
				s.behind = 0
				readToHead(t, f)
				heraldtest.Equal(t, "the blocks whose events were taken back", got.taken, nil)
				if f.next != s.head()+1 || got.rewinds == 0 || len(got.events) != 10 {
					t.Errorf("read to %d of %d, %d times again, with events in %d blocks of 10", f.next-1, s.head(), got.rewinds, len(got.events))
				}
			})
		})
	}
}

// TestSuccessorReadsAgain: a follower ends before it has read all blocks again after a reorg, and the next one's node lags.
// The next one takes no event back. But it does not wait forever for blocks that the chain no longer has.
func TestSuccessorReadsAgain(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newChainStub(t, 2*time.Second)
			s.every = 1
			f, got := newStubFollower(t, newStubReader(t, trusted, s), Config{From: s.head() - 9})
			readToHead(t, f)
			s.fork = f.next - 1
			failAndLag(s, 0)
			_, _ = f.readNext(t.Context()) // it fails
			readToHead(t, f)

			succeed := func(last uint64) {
				cfg := f.cfg
				cfg.Anchors, cfg.RereadTo = f.done, last
				f = New(f.reader, cfg)
			}
			succeed(s.fork)
			s.behind = 4
			readToHead(t, f)
			s.behind = 0
			readToHead(t, f)
			if len(got.taken) > 0 || got.rewinds != 1 || len(got.events) != 10 {
				t.Errorf("took back %v, with events in %d blocks of 10", got.taken, len(got.events))
			}

			gone := s.head() + 500
			got.orphaned[gone] = true
			succeed(gone)
			followFor(t, f, lowHeadTimeout/2)
			heraldtest.Equal(t, "taken back at once", got.taken, nil)
			followFor(t, f, lowHeadTimeout)
			heraldtest.Equal(t, "taken back later", got.taken, []uint64{gone})
		})
	}
}

// failAndLag lets the next reading of logs fail, and the node lag by five blocks from then on.
func failAndLag(s *chainStub, _ uint64) {
	failed := false
	s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getLogs" && !failed {
			failed, s.behind = true, 5
			return nil, chaintest.Error{Code: -32000, Message: "busy"}
		}
		return s.answerCall(method, params)
	})
}

// TestRateLimitedNodeReadsAgain: on a chain of five blocks a second, the newest block is replaced after the follower has
// read the blocks of some time at once. A node that limits the rate of calls does not keep it from the head for long.
func TestRateLimitedNodeReadsAgain(t *testing.T) {
	t.Parallel()
	for away, within := range map[time.Duration]time.Duration{30 * time.Minute: time.Minute, 90 * time.Second: 5 * time.Minute} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, 200*time.Millisecond)
				s.full, s.finality = true, 20*time.Minute
				f, _ := newStubFollower(t, newStubReader(t, false, s), Config{From: s.head()})
				readToHead(t, f)
				time.Sleep(away)
				readToHead(t, f)

				s.fork = f.next - 1
				const perSecond, most = 20, 100.0
				left, at := most, time.Now()
				s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
					left, at = min(left+perSecond*time.Since(at).Seconds(), most), time.Now()
					if left < 1 {
						return nil, chaintest.Error{Code: -32005, Message: "rate limit exceeded"}
					}
					left--
					return s.answerCall(method, params)
				})
				ctx, cancel := context.WithCancel(t.Context())
				handle := f.cfg.Handle
				f.cfg.Handle = func(ctx context.Context, r Range) error {
					if r.AtHead {
						cancel()
					}
					return handle(ctx, r)
				}
				time.AfterFunc(within, cancel)
				_ = f.Follow(ctx)
				if f.next+10 < s.head() {
					t.Errorf("after %v, the head is %d, and the next block %d", within, s.head(), f.next)
				}
			})
		})
	}
}
