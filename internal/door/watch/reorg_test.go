package watch

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// jobs returns the jobs of all feedback that is not cancelled, by feedback index.
func (w *world) jobs() map[uint64]job.Job {
	w.Helper()
	list, err := records.New(w.store).Deliveries(w.Context(), records.Filter{Limit: 100})
	heraldtest.Must(w, err)
	got := make(map[uint64]job.Job)
	for _, row := range list {
		d, err := w.store.Delivery(w.Context(), row.ID)
		heraldtest.Must(w, err)
		var j job.Job
		heraldtest.Must(w, json.Unmarshal(d.Job, &j))
		if d.Status == outcome.Queued && j.Kind == job.KindNewFeedback {
			got[j.FeedbackIndex] = j
		}
	}
	return got
}

// reorg replaces the newest blocks. If keep is set, the new branch contains their transactions.
func (w *world) reorg(depth uint64, keep bool) {
	w.Helper()
	heraldtest.Must(w, w.net.Reorg(w.Context(), depth, keep))
}

// TestReorg: feedback that is also on the new branch keeps its delivery, with its new block. Other feedback is
// cancelled, and its index can be used again. This holds if the running watcher or the next one finds the reorg, and if
// the watcher has no hash of a block below the reorg.
func TestReorg(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		atOnce    bool // one range contains all blocks, so no block below the reorg has an anchor
		restarted bool // the reorg happens while no watcher runs
	}{{"seen", false, false}, {"found by the next", false, true}, {"deeper than the anchors", true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var g *watcher
			if !tt.atOnce {
				g = w.watch(nil)
			}
			for n := 1; n <= 4; n++ {
				w.give(1)
				if !tt.atOnce {
					heraldtest.Await(t, "it is accepted", func() bool { return g.count(ledger.Accepted) == n })
				}
			}
			if tt.atOnce {
				g = w.watch(nil)
				heraldtest.Await(t, "all is accepted", func() bool { return g.count(ledger.Accepted) == 4 })
			}
			before := w.jobs()
			if tt.restarted {
				_ = g.stop()
			}

			w.reorg(2, true) // one block of the new branch contains 3 and 4
			if tt.restarted {
				g = w.watch(nil)
			}
			heraldtest.Await(t, "3 and 4 have another block", func() bool {
				now := w.jobs()
				return len(now) == 4 && now[3].BlockHash != before[3].BlockHash && now[4].BlockHash == now[3].BlockHash
			})
			heraldtest.Equal(t, "the event of feedback 2", w.jobs()[2].EventSum(), before[2].EventSum())

			w.reorg(3, false) // replaces depth + 1 blocks: the block with 3 and 4, and the two above it
			heraldtest.Await(t, "3 and 4 are taken back", func() bool { return w.rows()[outcome.Cancelled] == 2 })
			_, _, err := w.net.GiveFeedback(t.Context(), w.net.Account(1),
				devnet.Feedback{AgentID: w.agent, Value: big.NewInt(99)})
			heraldtest.Must(t, err)
			heraldtest.Await(t, "another 3 is accepted", func() bool {
				now := w.jobs()
				return len(now) == 3 && now[3].Value.Int64() == 99
			})
			if got := w.rows(); got[outcome.Cancelled] != 1 || got[outcome.Queued] != 3 { // no agent was called, so 3 keeps its delivery
				t.Errorf("%v", got)
			}
		})
	}
}

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
