package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// giveInOneBlock submits feedback of several clients in one block. It returns the events without their indexes, and
// separately the indexes that they had.
func (w *world) giveInOneBlock(clients ...devnet.Account) (events []erc8004.Event, indexes []uint64) {
	w.T.Helper()
	var sent []common.Hash
	for _, client := range clients {
		tx, err := w.Net.Submit(w.Ctx, client, w.Net.Deployment().Reputation,
			devnet.Feedback{AgentID: w.Agent, Value: big.NewInt(1)}.Calldata())
		heraldtest.Must(w.T, err)
		sent = append(sent, tx)
	}
	w.Mine(1)
	for _, tx := range sent {
		r, err := w.Net.Receipt(w.Ctx, tx)
		heraldtest.Must(w.T, err)
		for _, l := range r.Logs {
			e, err := erc8004.Decode(*l)
			heraldtest.Must(w.T, err)
			indexes = append(indexes, e.FeedbackIndex)
			e.FeedbackIndex, e.HasIndex = 0, false
			events = append(events, e)
		}
	}
	return events, indexes
}

// TestCountFeedback: CountFeedback sets the index that the registry assigned on events without one, even if a block has
// several events of several clients. An event that already has an index keeps it and is counted.
func TestCountFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.Rater, w.Net.Account(2)
	events, want := w.giveInOneBlock(a, a, b, a)
	more, wantMore := w.giveInOneBlock(b, a, b)
	events, want = append(events, more...), append(want, wantMore...)
	events[3].FeedbackIndex, events[3].HasIndex = want[3], true

	uncountable, err := w.client.CountFeedback(w.Ctx, events)
	if err != nil || len(uncountable) > 0 {
		t.Fatal(uncountable, err)
	}
	for i, e := range events {
		if !e.HasIndex || e.FeedbackIndex != want[i] {
			t.Errorf("event %d has the index %d, want %d", i, e.FeedbackIndex, want[i])
		}
	}
	heraldtest.Equal(t, "the number of events", len(events), 7)
	heraldtest.Equal(t, "the count of the seventh", want[6], 3)
}

// TestUncountableFeedback: if feedback can never be counted, CountFeedback returns the reason for each event. A
// temporary failure is returned as an error, so that no event is refused because of it.
func TestUncountableFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events, _ := w.giveInOneBlock(w.Rater)

	elsewhere := append([]erc8004.Event(nil), events...)
	elsewhere[0].Address = common.HexToAddress("0xdead")
	uncountable, err := w.client.CountFeedback(w.Ctx, elsewhere)
	if err != nil || !errors.As(uncountable[0], new(*node.NoContractError)) {
		t.Errorf("without a contract: %v, %v", uncountable, err)
	}

	for _, tt := range []struct {
		message string
		code    int
		forGood bool
	}{
		{"missing trie node 6dfa2b (path ) state 0x6dfa2b is not available", -32000, true},
		{"historical state 0x6dfa2b is not available", -32000, true},
		{"required historical state unavailable (reexec=128)", -32000, true},
		{"state at block #19000000 is pruned", -32603, true},
		{"No state available for block 19000000", -32002, true},
		{"World state unavailable", -32000, true},
		{"Archive requests require a personal token", -32701, true},
		{"internal error", -32603, false},
		{"limit exceeded", -32005, false},
		{"header not found", -32000, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			answerRPC(t, rw, r, w.Net.ChainID(), tt.code, tt.message)
		}))
		t.Cleanup(server.Close)
		client := newReader(t, w.Net.ChainID(), false, server.URL)
		uncountable, err := client.CountFeedback(context.Background(), append([]erc8004.Event(nil), events...))
		var never *UncountableError
		switch {
		case tt.forGood && (err != nil || !errors.As(uncountable[0], &never) || !strings.Contains(never.Error(), tt.message)):
			t.Errorf("%s: %v, %v", tt.message, uncountable, err)
		case !tt.forGood && !errors.As(err, new(*node.UnavailableError)):
			t.Errorf("%s: %v, %v", tt.message, uncountable, err)
		}
	}
}

// answerRPC answers every request but eth_chainId with an error.
func answerRPC(t *testing.T, rw http.ResponseWriter, r *http.Request, chainID uint64, code int, message string) {
	type call struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	var calls []call
	var raw json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		t.Error(err)
		return
	}
	batch := json.Unmarshal(raw, &calls) == nil
	if !batch {
		calls = make([]call, 1)
		if err := json.Unmarshal(raw, &calls[0]); err != nil {
			t.Error(err)
			return
		}
	}
	var answers []any
	for _, c := range calls {
		answer := map[string]any{"jsonrpc": "2.0", "id": c.ID}
		if c.Method == "eth_chainId" {
			answer["result"] = "0x" + new(big.Int).SetUint64(chainID).Text(16)
		} else {
			answer["error"] = map[string]any{"code": code, "message": message}
		}
		answers = append(answers, answer)
	}
	var answer any = answers
	if !batch {
		answer = answers[0]
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(answer)
}
