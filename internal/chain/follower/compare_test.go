package follower

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBackfillBesideNarrowNode: a backfill compares wide ranges with a node that accepts fewer blocks in one request. It
// reads single blocks only if the logs differ.
func TestBackfillBesideNarrowNode(t *testing.T) {
	t.Parallel()
	for name, omits := range map[string]bool{"no log is missing": false, "the first node omits a log": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wide, narrow := newChainStub(t, 200*time.Millisecond), newChainStub(t, 200*time.Millisecond)
				wide.every, narrow.every = 1000, 1000
				from, to := uint64(100_000), uint64(139_999)
				wide.hides = func(n uint64) bool { return omits && n == 125_000 }
				narrow.Set(nil, func(method string, params []json.RawMessage) (any, any) {
					var filter eventlog.Filter
					if method == "eth_getLogs" && json.Unmarshal(params[0], &filter) == nil && filter.ToBlock >= filter.FromBlock+2000 {
						return nil, chaintest.Error{Code: -32602, Message: "query exceeds max block range: 2000"}
					}
					return narrow.answerCall(method, params)
				})
				f, got := newStubFollower(t, newStubReader(t, false, wide, narrow), Config{From: from, To: &to})
				heraldtest.Must(t, f.Follow(t.Context()))
				_, calls := wide.countRequests()
				_, others := narrow.countRequests()
				if len(got.events) != 40 || calls+others > 300 {
					t.Errorf("%d events of 40, %d calls", len(got.events), calls+others)
				}
			})
		})
	}
}
