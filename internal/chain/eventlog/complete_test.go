package eventlog

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestOmittedLogsAreRead: the follower finds logs that a node omits from a range, unless the node is trusted.
func TestOmittedLogsAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.Feedback()
	w.Mine(120) // more blocks than one request may ask for
	second := w.Feedback()
	omitting := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		if q.Method == "eth_getLogs" && !bytes.Contains(q.Params[0], []byte("blockHash")) {
			return json.RawMessage("[]")
		}
		return result
	})
	for _, trusted := range []bool{false, true} {
		c := newReader(t, w.Net.ChainID(), trusted, omitting)
		filter := Filter{Address: []common.Address{w.Net.Deployment().Reputation},
			Topics: [][]common.Hash{erc8004.Topics(erc8004.NewFeedback)}, FromBlock: 1}
		head, err := c.ReadHead(w.Ctx)
		heraldtest.Must(t, err)
		filter.ToBlock = hexutil.Uint64(head.Number)
		logs, ends, err := c.ReadLogs(w.Ctx, filter)
		heraldtest.Must(t, err)
		logs, err = c.VerifyLogs(w.Ctx, filter, ends, logs, false)
		heraldtest.Must(t, err)
		if trusted {
			heraldtest.Equal(t, "logs that the proxy passes", len(logs), 0)
			continue
		}
		if len(logs) != 2 || logs[0].TxHash != first.TransactionHash || logs[1].TxHash != second.TransactionHash {
			t.Errorf("%d logs: %v", len(logs), logs)
		}
		whole, _, err := w.read(filter, w.Net.URL())
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "logs of a node that omits nothing", len(whole), 2)
	}
}

// TestStrangeLogsAreReplaced: a node returns logs of other blocks than those of the range, or logs that name no block.
// They are no reorg: the logs come from the receipts of the range's blocks.
func TestStrangeLogsAreReplaced(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	whole, _, err := w.read(filter, w.Net.URL())
	heraldtest.Must(t, err)
	mined := hexutil.Uint64(whole[0].BlockNumber)
	for field, last := range map[string]hexutil.Uint64{"": mined - 1, "blockHash": mined, "blockNumber": mined} {
		filter.ToBlock = last
		strange := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
			if q.Method != "eth_getLogs" || bytes.Contains(q.Params[0], []byte("blockHash")) {
				return result
			}
			var logs []map[string]any
			heraldtest.Must(t, json.Unmarshal(asJSON(whole), &logs))
			for _, l := range logs {
				delete(l, field)
			}
			return asJSON(logs)
		})
		want := whole
		if last < mined {
			want = nil
		}
		logs, _, err := w.read(filter, strange)
		heraldtest.Must(t, err)
		if !slices.EqualFunc(logs, want, func(a, b types.Log) bool { return PositionOf(a) == PositionOf(b) }) {
			t.Errorf("without %q: %+v", field, logs)
		}
	}
}

func asJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// TestCompleteLogsRefuses: a range is not complete if its blocks are not those of the logs, or if the node lacks a
// block.
func TestCompleteLogsRefuses(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	c := newReader(t, 1, false, n.URL)
	filter := Filter{FromBlock: 2, ToBlock: 4}
	ends := Ends{First: node.Block{Number: 2, Hash: n.Hash(2)}, Last: node.Block{Number: 4, Hash: n.Hash(4)}}
	_, err := c.CompleteLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.Hash(3)}})
	heraldtest.Must(t, err)
	if _, err := c.CompleteLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.Hash(2)}}); err != ErrReorganised {
		t.Errorf("of another block: %v", err)
	}
	for _, other := range []Ends{{First: ends.First, Last: node.Block{Number: 4, Hash: n.Hash(5)}}, {First: node.Block{Number: 2, Hash: n.Hash(5)}, Last: ends.Last}} {
		if _, err := c.CompleteLogs(t.Context(), filter, other, nil); err != ErrReorganised {
			t.Errorf("of another branch's end: %v", err)
		}
	}
	n.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getBlockByNumber" && string(params[0]) == `"0x4"` {
			return map[string]any{"number": "0x4", "hash": n.Hash(4), "parentHash": n.Hash(7), "timestamp": "0x1"}, nil
		}
		return nil, nil
	})
	if _, err := c.CompleteLogs(t.Context(), filter, ends, nil); err != ErrReorganised {
		t.Errorf("of another branch in the middle: %v", err)
	}
	for name, answer := range map[string]func(string, []json.RawMessage) (any, any){
		"a block that is missing":        chaintest.AnswerTo("eth_getBlockByNumber", json.RawMessage("null"), nil),
		"another block than asked for":   chaintest.AnswerTo("eth_getBlockByNumber", map[string]any{"number": "0x7", "hash": n.Hash(7), "timestamp": "0x1"}, nil),
		"a block whose logs are unknown": chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: -32000, Message: "unknown block"}),
	} {
		n.Set(nil, answer)
		if logs, err := c.CompleteLogs(t.Context(), filter, ends, nil); !as[*node.UnavailableError](err) {
			t.Errorf("%s: %v, %v", name, logs, err)
		}
	}
}
