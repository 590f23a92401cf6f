package follower

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
)

// TestLargeBlock: the events of one block do not fit into an answer, or the node returns fewer events at once. The receipt
// of one of its transactions does not fit either. The other events are handed over, and the chain is read on, also if
// there is a second node that does not answer.
func TestLargeBlock(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]any{
		"answered":          nil,
		"Infura":            chaintest.Error{Code: -32005, Message: "query returned more than 10000 results"},
		"LlamaRPC":          chaintest.Error{Code: -32602, Message: "query exceeds max results 20000"},
		"1RPC":              chaintest.Error{Code: -32602, Message: "response size should not greater than 10000000 bytes"},
		"Alchemy, by bytes": chaintest.Error{Code: -32602, Message: "Log response size exceeded."},
	} {
		t.Run(name, func(t *testing.T) { testLargeBlock(t, refusal, false) })
		t.Run(name+", beside a node that is down", func(t *testing.T) { testLargeBlock(t, refusal, true) })
	}
}

// testLargeBlock is TestLargeBlock for a node that refuses to return the logs of the block; nil: it returns them. isTwo
// adds a node that is down.
func testLargeBlock(t *testing.T, refusal any, isTwo bool) {
	tooLarge := 4 // the transaction whose receipt has 8.5 MiB of data, twice that as JSON; the others have 128 KiB
	if isTwo {
		tooLarge = -1 // the other node could have it
	}
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		s.finality = time.Minute
		large := s.head() + 5
		logOf := func(transaction int) *types.Log {
			size := 1 << 17
			if transaction == tooLarge {
				size *= 68
			}
			return &types.Log{Address: stubRegistry, Topics: erc8004.Topics(erc8004.NewFeedback)[:1], Data: make([]byte, size),
				BlockNumber: large, BlockHash: s.hashOf(large), BlockTimestamp: s.seconds(large),
				TxHash: common.Hash{3, byte(transaction)}, Index: uint(transaction)}
		}
		var logs []*types.Log
		var transactions []common.Hash
		for i := range 10 {
			logs = append(logs, logOf(i))
			transactions = append(transactions, logs[i].TxHash)
		}
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			var filter eventlog.Filter
			var hash common.Hash
			switch {
			case method == "eth_getLogs" && json.Unmarshal(params[0], &filter) == nil &&
				uint64(filter.FromBlock) <= large && large <= uint64(filter.ToBlock):
				if refusal != nil {
					return nil, refusal
				}
				return logs, nil
			case method == "eth_getTransactionReceipt" && json.Unmarshal(params[0], &hash) == nil:
				return map[string]any{"blockHash": s.hashOf(large), "blockNumber": hexutil.Uint64(large), "status": "0x1",
					"logs": []*types.Log{logs[hash[1]]}}, nil
			case method == "eth_getBlockByNumber" && strings.Trim(string(params[0]), `"`) == hexutil.EncodeUint64(large):
				block, ok := s.answerBlock(hexutil.EncodeUint64(large)).(map[string]any)
				if !ok {
					return json.RawMessage("null"), nil
				}
				block["transactions"] = transactions
				return block, nil
			}
			return s.answerCall(method, params)
		})
		nodes := []*chainStub{s}
		if isTwo {
			down := newChainStub(t, 2*time.Second)
			down.Set(chaintest.Failures()["503"], nil)
			nodes = append(nodes, down)
		}
		f, got := newStubFollower(t, newStubReader(t, false, nodes...), Config{From: s.head()})
		followFor(t, f, time.Minute)
		if f.next+3 < s.head() || got.events[large] != len(logs)-min(tooLarge+1, 1) {
			t.Errorf("read to %d of %d, %d events of block %d: %v", f.next-1, s.head(), got.events[large], large, f.trouble)
		}
	})
}
