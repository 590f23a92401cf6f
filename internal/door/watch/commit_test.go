package watch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// notes is a ledger that records each move of the cursors.
type notes struct {
	Ledger
	moves []store.Advance
}

func (n *notes) AdvanceCursors(_ context.Context, cursors []*cursor.Cursor, a store.Advance) (store.Advanced, error) {
	n.moves = append(n.moves, a)
	cursors[0].Next = a.To + 1
	return store.Advanced{Answers: make([]ledger.Acceptance, len(a.Intakes))}, nil
}

// TestEmptyReadingsCommitSeldom: readings without events commit at most every 10 s. Events, a reorg and the first
// reading at the head commit at once. The cursor skips no block. After a reorg, all blocks are read again before events
// are taken back.
func TestEmptyReadingsCommitSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, err := node.New(node.Config{ChainID: 1, URLs: []secret.Secret{secret.New("http://127.0.0.1:1")}})
		heraldtest.Must(t, err)
		t.Cleanup(client.Close)
		ledger := &notes{}
		w, err := New(Config{Chain: eventlog.New(client, false), Ledger: ledger, Deployment: erc8004.Deployment{Reputation: common.Address{1}},
			Limits: job.Limits{MaxTimeout: time.Minute}})
		heraldtest.Must(t, err)
		g := &group{cursors: []*cursor.Cursor{{Next: 100}}}
		read := func(from, to uint64, events int, atHead bool) {
			t.Helper()
			r := follower.Range{From: from, To: to, Head: to, AtHead: atHead, Events: make([]eventlog.Entry, events)}
			_, err := w.commitRange(t.Context(), g, r)
			heraldtest.Must(t, err)
		}
		next := uint64(100)
		for range 60 { // two minutes
			read(next, next+9, 0, true)
			next += 10
			time.Sleep(2 * time.Second)
		}
		if n := len(ledger.moves); n < 11 || n > 13 {
			t.Errorf("%d commits in two minutes", n)
		}
		read(next, next, 1, true)
		read(next+1, next+1, 0, true)
		read(next-5, next, 0, false) // this reading follows a reorg
		read(next+1, next+2, 0, true)
		read(next+3, next+3, 0, true)
		committed := ledger.moves[len(ledger.moves)-3:]
		if committed[0].To != next || committed[1].From != next-5 || committed[2].To != next+2 {
			t.Errorf("%+v", committed)
		}
		for i, a := range ledger.moves[1:] {
			if before := ledger.moves[i]; a.From > before.To+1 {
				t.Errorf("blocks %d to %d are left out", before.To+1, a.From-1)
			}
		}

		// Another contract limits the group. After a reorg, and one more, a node that lags has an old head, above which there
		// are events.
		g.limit.Store(next + 50)
		for _, r := range []follower.Range{{From: next, To: next, Head: next + 1, Rereads: true},
			{From: next, To: next, Head: next, Rereads: true}, {From: next + 1, To: next + 1, Head: next + 90, Rereads: true},
			{From: next + 2, To: next + 3, Head: next + 90}} {
			r.Events = make([]eventlog.Entry, 1)
			_, err := w.commitRange(t.Context(), g, r)
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "all blocks are read again", ledger.moves[len(ledger.moves)-1].AtHead, r.To == next+3)
		}
	})
}
