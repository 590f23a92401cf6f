package follower

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
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

// TestFollowerUsesStatedRange: after one refused range the follower uses the limit that the node named, and skips no
// block.
func TestFollowerUsesStatedRange(t *testing.T) {
	t.Parallel()
	var ranges [][2]uint64
	refused := 0
	n := chaintest.NewNode(t, 1)
	n.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		switch {
		case method == "eth_getBlockByNumber" && string(params[0]) == `"latest"`:
			return map[string]any{"number": "0x1388", "hash": n.Hash(5000), "timestamp": "0x1"}, nil
		case method != "eth_getLogs":
			return nil, nil
		}
		var f eventlog.Filter
		if err := json.Unmarshal(params[0], &f); err != nil {
			t.Error(err)
		}
		if f.ToBlock-f.FromBlock >= 300 {
			refused++
			return nil, chaintest.Error{Code: -32000, Message: "exceed maximum block range: 300"}
		}
		ranges = append(ranges, [2]uint64{uint64(f.FromBlock), uint64(f.ToBlock)})
		return nil, nil
	})
	c := newReader(t, 1, true, n.URL)
	f := New(c, Config{Deployment: erc8004.Deployment{Reputation: common.Address{1}}, Limits: limits,
		Handle: func(context.Context, Range) error { return nil }})
	readToHead(t, f)
	next := uint64(0)
	for _, r := range ranges {
		heraldtest.Equal(t, "the first block that is asked for", r[0], next)
		next = r[1] + 1
	}
	heraldtest.Equal(t, "read to", next, 5001)
	heraldtest.Equal(t, "refused ranges", refused, 1)
}
