package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/operator"
)

// TestJudgeFollowed checks that a finding about a stalled chain contains the node's error, and that a node that omitted
// logs is identified by its number.
func TestJudgeFollowed(t *testing.T) {
	t.Parallel()
	since, lag := time.Now().Add(-time.Hour), 0.0
	blocks := uint64(0)
	for name, c := range map[string]struct {
		state operator.CursorState
		want  string
	}{
		"read": {operator.CursorState{Next: 8, LagTime: &lag, LagBlocks: &blocks}, "is read up to block 7"},
		"not read": {operator.CursorState{StalledSince: &since, StalledWhy: "the node answered error -32014: no"},
			"the node answered error -32014: no"},
		"given up": {operator.CursorState{StalledSince: &since, StalledWhy: "no", LagTime: &lag, LagBlocks: &blocks},
			"the reader's last error: no. If that is repaired, check that a worker with HERALD_WATCH, or `enqueue watch 8453`, runs"},
		"an omission": {operator.CursorState{LagTime: &lag, LagBlocks: &blocks, Checks: &follower.Checks{
			Omission: &follower.Omission{Node: 2, Block: 77, Logs: 1, At: since}}}, "node 2 of RPC_URL_8453 left out 1 logs of block 77"},
	} {
		found := judgeFollowed(operator.ChainState{ChainID: 8453, Cursors: []operator.CursorState{c.state}})
		if len(found) != 1 || !strings.Contains(found[0].Text, c.want) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
