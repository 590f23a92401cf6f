package follower

import (
	"encoding/json"
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
