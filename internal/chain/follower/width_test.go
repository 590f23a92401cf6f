package follower

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestRangeWidth: the width narrows to the node's limit. A constant limit causes few refusals; a limit that ends lets
// the width grow again.
func TestRangeWidth(t *testing.T) {
	t.Parallel()
	w := newRangeWidth(1000)
	w.narrow(refusal(t, "range 1000 exceeds limit of 300"), 1000)
	heraldtest.Equal(t, "blocks", w.blocks, 300)
	large, refusals := refusal(t, "block range too large"), 0
	for range 10 * holdAfterRefusal {
		if w.blocks > 300 {
			refusals++
			w.narrow(large, w.blocks)
			continue
		}
		w.widen()
	}
	if refusals < 5 || refusals > 10 || w.blocks != 300 {
		t.Errorf("%d refusals of %d questions, %d blocks at the end", refusals, 10*holdAfterRefusal, w.blocks)
	}
	for range holdAfterRefusal + 2 {
		w.widen() // now the node accepts every width
	}
	heraldtest.Equal(t, "blocks", w.blocks, 1000)
	for range 30 {
		w.narrow(context.DeadlineExceeded, w.blocks)
	}
	heraldtest.Equal(t, "blocks", w.blocks, 1)
}

// refusal returns the error of a node that refuses a range.
func refusal(t *testing.T, message string) error {
	t.Helper()
	n := chaintest.NewNode(t, 1)
	n.Set(nil, chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: -32602, Message: message}))
	_, _, err := newReader(t, 1, false, n.URL).ReadLogs(t.Context(), eventlog.Filter{ToBlock: 9})
	return err
}
