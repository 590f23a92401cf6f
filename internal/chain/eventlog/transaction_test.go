package eventlog

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// serveOldForm starts a proxy of a node that converts every NewFeedback to the form of October 2025, which has no
// index.
func serveOldForm(t *testing.T, target string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		response, err := http.Post(target, "application/json", r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return
		}
		var answer any
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		if err := dec.Decode(&answer); err != nil {
			t.Error(err)
		}
		ageFeedback(answer)
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// ageFeedback converts the logs anywhere in an answer to the old form.
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
	var sent []common.Hash
	for range 3 {
		tx, err := w.Net.Submit(w.Ctx, w.Rater, w.Net.Deployment().Reputation,
			devnet.Feedback{AgentID: w.Agent, Value: big.NewInt(7)}.Calldata())
		heraldtest.Must(t, err)
		sent = append(sent, tx)
	}
	w.Mine(1)
	c := newReader(t, w.Net.ChainID(), true, serveOldForm(t, w.Net.URL()))
	for i, tx := range sent {
		events, _, err := c.ReadTransaction(w.Ctx, tx, w.Net.Deployment(), limits)
		if err != nil || len(events) != 1 || events[0].Err != nil {
			t.Fatalf("%+v, %v", events, err)
		}
		if j := events[0].Job; j.Kind != job.KindNewFeedback || j.FeedbackIndex != uint64(i+1) || j.TransactionHash != tx {
			t.Errorf("transaction %d of the block has feedback %d", i+1, j.FeedbackIndex)
		}
	}
}
