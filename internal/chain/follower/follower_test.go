package follower

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// follow runs a follower until the test ends, and returns the channel of its jobs.
func (w *world) follow(cfg Config) <-chan job.Job {
	w.T.Helper()
	jobs := make(chan job.Job, 100)
	cfg.Deployment, cfg.Poll, cfg.Limits = w.Net.Deployment(), cmp.Or(cfg.Poll, 5*time.Millisecond), limits
	cfg.Handle = func(_ context.Context, r Range) error {
		for _, e := range r.Events {
			jobs <- e.Job
		}
		return nil
	}
	f := New(w.client, cfg)
	ctx, cancel := context.WithCancel(w.Ctx)
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()
	w.T.Cleanup(func() {
		cancel()
		heraldtest.Fails(w.T, "Follow ended", <-done, context.Canceled)
	})
	return jobs
}

func (w *world) next(jobs <-chan job.Job) job.Job {
	w.T.Helper()
	select {
	case j := <-jobs:
		return j
	case <-w.Ctx.Done():
		w.T.Fatal("the follower handed nothing over")
		return job.Job{}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.Feedback()
	w.Mine(5)
	jobs := w.follow(Config{})
	updated := w.next(jobs)
	if updated.Kind != job.KindAgentUpdated || updated.AgentID.Sign() != 0 || updated.IdentityRegistry != w.Net.Deployment().Identity {
		t.Errorf("%+v", updated)
	}
	for updated.Kind == job.KindAgentUpdated { // Transfer, MetadataUpdate, Registered
		updated = w.next(jobs)
	}
	if got := updated; got.Key() != first.Key() || got.Timestamp == 0 || got.Timestamp != first.Timestamp || len(got.Sanitized) != 2 {
		t.Errorf("got  %+v\nwant %+v", got, first)
	}
	// Three events of one block arrive in order while the follower runs.
	for range 3 {
		if _, err := w.Net.Submit(w.Ctx, w.Rater, w.Net.Deployment().Reputation, devnet.Feedback{AgentID: w.Agent, Tag1: "later"}.Calldata()); err != nil {
			t.Fatal(err)
		}
	}
	w.Mine(1)
	for want := uint64(2); want <= 4; want++ {
		j := w.next(jobs)
		heraldtest.Equal(t, "index", j.FeedbackIndex, want)
		heraldtest.Equal(t, "tag1", j.Tag1, "later")
	}
	revoked := w.Job(w.Net.RevokeFeedback(w.Ctx, w.Rater, w.Agent, 2))(erc8004.FeedbackRevoked)
	if got := w.next(jobs); got.Key() != revoked.Key() || got.Kind != job.KindFeedbackRevoked || got.Reason != job.RevokedByClient {
		t.Errorf("%+v", got)
	}
}

// TestFollowReorg: if a reorg replaces the last block that was read, the follower reads its successor.
func TestFollowReorg(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.follow(Config{Contracts: []common.Address{w.Net.Deployment().Reputation}})
	w.Feedback()
	w.next(jobs)
	second := w.Feedback()
	w.next(jobs)
	heraldtest.Must(t, w.Net.Reorg(w.Ctx, 1, true))
	if again := w.next(jobs); again.Key() != second.Key() || again.BlockHash == second.BlockHash {
		t.Errorf("after the reorg %s in block %s, before %s in %s", again.Key(), again.BlockHash, second.Key(), second.BlockHash)
	}
}

// TestHandleFails: a follower ends with the error of Handle.
func TestHandleFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Feedback()
	stop := errors.New("stop")
	f := New(w.client, Config{Deployment: w.Net.Deployment(), Contracts: []common.Address{w.Net.Deployment().Reputation}, Limits: limits,
		Handle: func(context.Context, Range) error { return stop }})
	heraldtest.Fails(t, "the error", f.Follow(w.Ctx), stop)
}

// TestLaggardTakesNothingBack: only a node that lags by minutes answers, while the follower has read newer blocks. The
// follower waits until that node has them, and takes no event back. If another chain's head is low and new, it also
// waits for lowHeadTimeout. Then it reads again from below, and takes back the events above the head, also if it had not
// read all blocks again after a reorg.
func TestLaggardTakesNothingBack(t *testing.T) {
	t.Parallel()
	for _, lags := range []bool{true, false} {
		t.Run(fmt.Sprint(lags), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, 2*time.Second)
				f, got := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head()})
				s.every = 1
				followFor(t, f, 3*time.Minute)
				read := got.next
				f.strictBefore = read
				if s.behind = 100; !lags {
					s.began = s.began.Add(100 * s.pace) // the newest blocks of the shorter chain are as new
					s.behind = 0
				}
				followFor(t, f, lowHeadTimeout-2*f.cfg.Poll)
				heraldtest.Equal(t, "read while it waits", *got, ledger{next: read, events: got.events, orphaned: got.orphaned, found: got.found})
				followFor(t, f, time.Minute)
				heraldtest.Equal(t, "events are taken back", len(got.taken) > 0, !lags)
				followFor(t, f, 10*time.Minute)
				if got.next < read+100 || (got.rewinds > 0) == lags {
					t.Errorf("read %d blocks more, %d times again from below", got.next-read, got.rewinds)
				}
			})
		})
	}
}

// TestHeadBelowAllAnchors: if the head stays below all remembered blocks, the follower reads again from its first block.
func TestHeadBelowAllAnchors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		s.every = 1
		from := s.head() - 5
		f, got := newStubFollower(t, newStubReader(t, true, s), Config{From: from, Anchors: []Anchor{{Number: s.head() + 1000}}})
		followFor(t, f, 2*lowHeadTimeout)
		if f.next+3 < s.head() || uint64(len(got.events)) != f.next-from {
			t.Errorf("read to %d of %d, with events in %d blocks from %d", f.next-1, s.head(), len(got.events), from)
		}
	})
}

// TestFollowSeesAReorgMeanwhile: a reorg happens after the follower verified the last block that it handed over, and
// before it reads the next ones. The follower does not treat the new blocks as a continuation.
func TestFollowSeesAReorgMeanwhile(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{true, false} {
		w := newWorld(t)
		reader := newReader(t, w.Net.ChainID(), trusted, w.Net.URL())
		w.Mine(3)
		var handed []Range
		f := New(reader, Config{Deployment: w.Net.Deployment(), Limits: limits,
			Handle: func(_ context.Context, r Range) error { handed = append(handed, r); return nil }})
		_, err := f.readNext(w.Ctx)
		heraldtest.Must(t, err)
		before := f.done[len(f.done)-1]
		if err := w.Net.Reorg(w.Ctx, 2, false); err != nil { // this replaces three blocks
			t.Fatal(err)
		}
		for _, blocks := range []uint64{1, 4} {
			end, err := w.client.ReadBlock(w.Ctx, before.Number+1)
			heraldtest.Must(t, err)
			if blocks > 1 {
				w.Mine(4)
				end, err = w.client.ReadBlock(w.Ctx, before.Number+blocks)
				heraldtest.Must(t, err)
			}
			_, _, err = f.readRangeLogs(w.Ctx, uint64(end.Number), *end)
			heraldtest.Fails(t, fmt.Sprintf("trusted %t, %d blocks", trusted, blocks), err, eventlog.ErrReorganised)
		}
		if _, err := f.readNext(w.Ctx); err != nil || len(handed) != 2 || handed[1].From > before.Number-1 {
			t.Errorf("%v, %+v", err, handed)
		}
	}
}

// TestFollowLimit: a follower reads no block above its limit, asks for the limit again and again, and reads on when it
// rises. It ends with the error of the limit.
func TestFollowLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		s.every = 1
		from, limit, asked := s.head()-5, s.head()-3, 0
		var broken error
		f, got := newStubFollower(t, newStubReader(t, true, s), Config{From: from, Limit: func(context.Context) (uint64, error) {
			asked++
			return limit, broken
		}})
		for range 2 {
			asked = 0
			followFor(t, f, time.Minute)
			if asked < 3 || got.next != limit+1 || got.rewinds > 0 || uint64(len(got.events)) != limit+1-from {
				t.Errorf("the limit %d is asked for %d times, and read are the events of %v", limit, asked, got.events)
			}
			limit += 2
		}
		broken = errors.New("the limit is not known")
		heraldtest.Fails(t, "the error", f.Follow(t.Context()), broken)
	})
}

// TestHeadBelowTheStart: a follower that started at a false head, above the real one, ends with an error.
func TestHeadBelowTheStart(t *testing.T) {
	t.Parallel()
	f := New(newReader(t, 1, false, chaintest.NewNode(t, 1).URL), Config{Deployment: erc8004.Deployment{Reputation: common.Address{1}},
		From: 5000, FromHead: true, Poll: time.Millisecond, Limits: limits, Handle: refuseRange})
	f.lowHeadTimeout = 10 * time.Millisecond
	heraldtest.Fails(t, "the follower ends", f.Follow(t.Context()), ErrStartAboveHead)
}

func refuseRange(context.Context, Range) error { return errors.New("nothing is to be handed over") }

// TestBlockWithoutHashIsNoReorg: for two minutes, a node returns blocks without a hash. The follower reads nothing again,
// and waits for the node.
func TestBlockWithoutHashIsNoReorg(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		s.every = 5
		f, got := newStubFollower(t, newStubReader(t, false, s), Config{From: s.head()})
		followFor(t, f, 10*time.Minute)
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			result, failure := s.answerCall(method, params)
			if block, ok := result.(map[string]any); ok {
				delete(block, "hash")
			}
			return result, failure
		})
		followFor(t, f, 2*time.Minute)
		if requests, _ := s.countRequests(); requests > 130 {
			t.Errorf("%d requests in two minutes", requests)
		}
		s.Set(nil, s.answerCall)
		followFor(t, f, time.Minute)
		if behind := s.head() - (got.next - 1); behind > 2 || got.rewinds > 0 {
			t.Errorf("%d blocks behind, %d reorgs", behind, got.rewinds)
		}
	})
}
