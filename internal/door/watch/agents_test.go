package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// TestTransfer: the transfer of an agent to another owner is recorded, and the agent is resolved again. The mint of its
// registration is no transfer.
func TestTransfer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch(nil)
	agent := erc8004.Agent{ChainID: w.net.ChainID(), Registry: strings.ToLower(w.net.Deployment().Identity.Hex()), ID: fmt.Sprint(w.agent)}
	var before records.AgentRow
	heraldtest.Await(t, "the agent is known", func() (known bool) {
		var err error
		before, err = records.New(w.store).AgentRow(t.Context(), agent)
		return err == nil
	})
	if list, err := records.New(w.store).Transfers(t.Context(), agent); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	_, err := w.net.Transfer(t.Context(), w.net.Account(0), w.net.Account(2).Address, w.agent)
	heraldtest.Must(t, err)
	heraldtest.Await(t, "the transfer is known", func() bool {
		list, err := records.New(w.store).Transfers(t.Context(), agent)
		return err == nil && len(list) == 1 && common.HexToAddress(list[0].To) == w.net.Account(2).Address &&
			common.HexToAddress(list[0].From) == w.net.Account(0).Address && list[0].BlockNumber > 0
	})
	if after, err := records.New(w.store).AgentRow(t.Context(), agent); err != nil || after.Epoch <= before.Epoch {
		t.Errorf("epoch %d after %d, %v", after.Epoch, before.Epoch, err)
	}

	// A reorg removes the transfer.
	w.reorg(1, false)
	heraldtest.Await(t, "the transfer is forgotten", func() bool {
		list, err := records.New(w.store).Transfers(t.Context(), agent)
		return err == nil && len(list) == 0
	})
}
