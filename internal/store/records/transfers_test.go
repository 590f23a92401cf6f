package records_test

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
)

// TestAgentChanges: a range of agents raises the epochs of the known agents in it, and inserts no others. A transfer is
// listed once, with the block that contains it now.
func TestAgentChanges(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, agent := range []int{5, 6, 900} {
		acceptOne(t, s, feedback(agent, 1))
	}
	epochs := func() (got []int64) {
		t.Helper()
		rows, err := s.Agents(t.Context(), records.AgentFilter{})
		heraldtest.Must(t, err)
		for _, r := range rows {
			got = append(got, r.Epoch)
		}
		return got
	}
	updated := func(agent int, change ledger.AgentChange) ledger.Intake {
		j, index := feedback(agent, 0), uint(3)
		j.BlockNumber, j.TransactionHash, j.LogIndex = 77, common.Hash{0xff}, &index
		j.Kind = job.KindAgentUpdated
		return ledger.Intake{Job: j, AgentChange: change}
	}
	huge := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	out, _ := accept(t, s, updated(6, ledger.AgentChange{LastID: huge}), updated(6, ledger.AgentChange{LastID: big.NewInt(6)}))
	heraldtest.Equal(t, "the verdict", out[0].Verdict, ledger.Refreshed)
	heraldtest.Equal(t, "the epochs of 5, 6 and 900", epochs(), []int64{0, 2, 1})

	given := ledger.AgentChange{From: common.HexToAddress("0xAA"), To: common.HexToAddress("0xBB")}
	accept(t, s, updated(5, given))
	again := updated(5, given)
	again.Job.BlockNumber, again.Job.Timestamp = 78, 780
	accept(t, s, again)
	list, err := s.Transfers(t.Context(), storetest.Agent(5))
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[0]; got.BlockNumber != 78 || !got.At.Equal(time.Unix(780, 0)) || common.HexToAddress(got.To) != given.To ||
		common.HexToAddress(got.From) != given.From {
		t.Errorf("%+v", got)
	}
	heraldtest.Equal(t, "the epoch of 5", epochs()[0], 2)

	// A stranger can change an agent thousands of times in one block.
	accept(t, s, slices.Repeat([]ledger.Intake{updated(5, given)}, 50)...)
	heraldtest.Equal(t, "the epoch of 5 after many changes at once", epochs()[0], 3)
}
