package eventlog

import (
	"encoding/json"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// ageFeedback converts every NewFeedback in an answer to the form of October 2025, which has no index.
func ageFeedback(v any) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			ageFeedback(one)
		}
	case map[string]any:
		topics, isLog := v["topics"].([]any)
		if isLog && len(topics) > 0 && topics[0] == erc8004.Topics(erc8004.NewFeedback)[0].Hex() {
			old := crypto.Keccak256Hash([]byte("NewFeedback(uint256,address,uint8,bytes32,bytes32,string,bytes32)"))
			v["topics"] = []any{old.Hex(), topics[1], topics[2], common.Hash{}.Hex()}
			data := make([]byte, 5*32) // score, tag2, offset of the URI, hash, length of the URI
			data[31], data[3*32-1] = 7, 4*32
			v["data"] = hexutil.Encode(data)
		}
		for _, one := range v {
			ageFeedback(one)
		}
	}
}

// TestReadTransactionCounts: feedback without an index gets the index that the registry assigned, even if other
// transactions of the block contain more feedback of the same client to the same agent.
func TestReadTransactionCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	given, _ := w.giveInOneBlock(w.Rater, w.Rater, w.Rater)
	c := newReader(t, w.Net.ChainID(), true, chaintest.Bend(t, w.Net.URL(), func(_ chaintest.Request, result json.RawMessage) json.RawMessage {
		var answer any
		heraldtest.Must(t, json.Unmarshal(result, &answer))
		ageFeedback(answer)
		aged, err := json.Marshal(answer)
		heraldtest.Must(t, err)
		return aged
	}))
	for i, e := range given {
		events, _, err := c.ReadTransaction(w.Ctx, e.TxHash, w.Net.Deployment(), limits)
		if err != nil || len(events) != 1 || events[0].Err != nil {
			t.Fatalf("%+v, %v", events, err)
		}
		if j := events[0].Job; j.Kind != job.KindNewFeedback || j.FeedbackIndex != uint64(i+1) || j.TransactionHash != e.TxHash {
			t.Errorf("transaction %d of the block has feedback %d", i+1, j.FeedbackIndex)
		}
	}
}
