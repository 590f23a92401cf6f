package follower

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/testing/chaintest"
)

// TestRecheckMeetsPrunedBlocks: after an omission, blocks are read again of which the node has dropped the older part.
// The follower finds the omitted log in the newer part, and reads new blocks in ranges as wide as before.
func TestRecheckMeetsPrunedBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 200*time.Millisecond)
		s.every, s.finality = 100, time.Minute
		from := s.head()
		pruned, omitted := from-5000, from-2000
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			var filter eventlog.Filter
			if method == "eth_getLogs" && json.Unmarshal(params[0], &filter) == nil && uint64(filter.FromBlock) < pruned {
				return nil, chaintest.Error{Code: 4444, Message: "pruned history unavailable"}
			}
			return s.answerCall(method, params)
		})
		f, got := newStubFollower(t, newStubReader(t, false, s), Config{From: 1,
			Checks:  &Checks{Complete: from - 1, Recheck: &[2]uint64{from - 10_000, from - 1}},
			Anchors: []Anchor{{Number: from - 1, Hash: s.hashOf(from - 1), Time: s.seconds(from - 1)}}})
		followFor(t, f, 5*time.Minute)
		before, _ := s.countRequests()
		followFor(t, f, 5*time.Minute)
		after, _ := s.countRequests()
		if got.found[omitted/100*100] == 0 {
			t.Errorf("the log of block %d is not found: %+v", omitted/100*100, f.checks.reportChecks(f.next))
		}
		if requests := after - before; requests > 5*30*4 {
			t.Errorf("%d requests in 5 minutes, the width is %d", requests, f.width.blocks)
		}
	})
}

// TestRecheckIsBounded: a chain of five blocks a second was last checked completely half a day ago and more. After an
// omission, at most maxRecheck blocks are read again.
func TestRecheckIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 20*time.Millisecond)
		head := s.head()
		f, _ := newStubFollower(t, newStubReader(t, false, s), Config{From: 1, Anchors: []Anchor{{Number: head, Hash: s.hashOf(head)}},
			Finalized: head, Checks: &Checks{Complete: 10}})
		f.noteOmission(head-5, 1)
		if r := f.checks.recheck; head < 2*maxRecheck || r == nil || r.to != head || r.from != head+1-maxRecheck {
			t.Errorf("with the head %d, %+v is read again", head, r)
		}
	})
}
