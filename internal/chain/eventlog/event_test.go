package eventlog

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestJobRefuses(t *testing.T) {
	t.Parallel()
	e := erc8004.Event{Kind: erc8004.NewFeedback, AgentID: big.NewInt(1), Value: big.NewInt(90)}
	if _, err := Job(e, 1, erc8004.Deployment{}, 0, limits); err == nil {
		t.Error("a job was made without an index")
	}
	if _, err := Job(erc8004.Event{Kind: erc8004.ValidationRequest, AgentID: big.NewInt(1)}, 1, erc8004.Deployment{}, 0, limits); err == nil {
		t.Error("a job was made of a validation request")
	}
}

// TestJobOfImpossibleTime: a node's false timestamp does not make an event invalid.
func TestJobOfImpossibleTime(t *testing.T) {
	t.Parallel()
	e := erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, FeedbackIndex: 1, AgentID: big.NewInt(1), Value: big.NewInt(90),
		Address: common.Address{1}, Client: common.Address{2}}
	for at, want := range map[uint64]int64{1: 1, job.MaxTimestamp: job.MaxTimestamp, 1_700_000_000_000: 0, math.MaxUint64: 0} {
		j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, at, limits)
		if err != nil || j.Timestamp != want {
			t.Errorf("time %d: %d, %v", at, j.Timestamp, err)
		}
	}
}

func TestJobOfArbitraryStrings(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	e := erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, FeedbackIndex: 1<<64 - 1, AgentID: new(big.Int).Lsh(big.NewInt(1), 255), Value: big.NewInt(-1),
		Tag1: all.String(), Tag2: `","x":"`, Address: common.Address{1}, Client: common.Address{2}}
	j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, 1, limits)
	if err != nil || j.Tag2 != e.Tag2 || j.FeedbackIndex != e.FeedbackIndex || len(j.Sanitized) != 1 {
		t.Fatalf("the job %+v, %v: want tag1 sanitized and the rest as it is", j, err)
	}
	// The stored JSON is a valid job, as an enqueuer could have written it.
	j.Sanitized = nil
	text, err := json.Marshal(j)
	heraldtest.Must(t, err)
	again, err := job.Parse(text, limits)
	if field, differs := again.Conflict(j); err != nil || differs || again.Key() != j.Key() {
		t.Errorf("%s is read as %+v, %v: differs in %q", text, again, err, field)
	}
}

// TestSortKeepsLogsOfAllTransactions: some nodes count logIndex in each transaction, and some send a log twice. Sort
// removes only logs with the same position in the same transaction.
func TestSortKeepsLogsOfAllTransactions(t *testing.T) {
	t.Parallel()
	var logs []types.Log
	for _, at := range [][2]uint{{2, 0}, {1, 1}, {1, 0}, {2, 0}, {1, 0}} {
		logs = append(logs, types.Log{BlockNumber: 4, TxIndex: at[0], TxHash: common.Hash{byte(at[0])}, Index: at[1]})
	}
	var got [][2]uint
	for _, l := range Sort(logs) {
		got = append(got, [2]uint{l.TxIndex, l.Index})
	}
	heraldtest.Equal(t, "transactions and indexes", got, [][2]uint{{1, 0}, {1, 1}, {2, 0}})
}
