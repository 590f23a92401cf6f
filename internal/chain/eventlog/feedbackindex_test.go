package eventlog

import (
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
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
// temporary failure is returned as an error, so that no event is refused because of it. An event that contains its index
// needs no count.
func TestUncountableFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events, _ := w.giveInOneBlock(w.Rater, w.Rater)
	events[1].HasIndex = true

	elsewhere := slices.Clone(events)
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
		n := chaintest.NewNode(t, 1)
		n.Set(nil, chaintest.AnswerTo("eth_call", nil, chaintest.Error{Code: tt.code, Message: tt.message}))
		uncountable, err := newReader(t, 1, false, n.URL).CountFeedback(t.Context(), slices.Clone(events))
		var never *UncountableError
		switch {
		case tt.forGood && (err != nil || len(uncountable) != 1 || !errors.As(uncountable[0], &never) || !strings.Contains(never.Error(), tt.message)):
			t.Errorf("%s: %v, %v", tt.message, uncountable, err)
		case !tt.forGood && !errors.As(err, new(*node.UnavailableError)):
			t.Errorf("%s: %v, %v", tt.message, uncountable, err)
		}
	}
}
