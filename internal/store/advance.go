package store

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/jackc/pgx/v5"
)

// Advance describes consecutive blocks of a chain that were read, with their events.
type Advance struct {
	// From and To are the first and the last block that were read. If From is before the cursor's Next, a reorg
	// replaced the blocks from From on, and they were read again.
	From, To  uint64
	Head      uint64          // as in cursor.Cursor
	Finalized uint64          // as in cursor.Cursor
	Settled   uint64          // as in cursor.Cursor
	AtHead    bool            // the head at the last reorg was reached: orphaned events not read again are gone
	Anchors   []cursor.Anchor // replace those of the cursors
	Checks    json.RawMessage // as in cursor.Cursor
	Intakes   []ledger.Intake // jobs made from the blocks' events, in the chain's order
}

// Advanced is the result of AdvanceCursors.
type Advanced struct {
	Answers  []ledger.Acceptance // element i answers Advance.Intakes[i]
	Tasks    []ledger.Task       // tasks to put into Redis
	Vanished []ledger.Vanished   // deliveries whose events a reorg removed
}

// AdvanceCursors accepts the jobs of the blocks that were read, ends deliveries whose events a reorg removed, and moves
// the cursors to the block after a.To, in one transaction. It also updates the elements of list. All cursors are of
// one chain and have the same Next. They are cursors of contracts, or one cursor of a backfill, which is deleted after
// its last block. The number of jobs has no limit, unlike that of Accept. See docs/design/chain.md.
//
// It returns cursor.ErrMoved, and stores nothing, if another process has moved one of the cursors.
func (s *Store) AdvanceCursors(ctx context.Context, list []*cursor.Cursor, a Advance) (done Advanced, err error) {
	g := newCursorGroup(list)
	ctx, end := s.StartCall(ctx, &err, "accept jobs (%d) of chain %d from blocks %d to %d", len(a.Intakes), g.chainID,
		a.From, a.To)
	defer end()
	anchors, err := json.Marshal(a.Anchors)
	if err != nil {
		return Advanced{}, err
	}
	rows, err := newArrivals(a.Intakes)
	if err != nil {
		return Advanced{}, err
	}
	for i := range rows {
		rows[i].followed, rows[i].read = true, true
	}
	rewinds := a.From < g.next
	err = s.retryTransaction(ctx, func() error {
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
			var moved int
			var orphans bool
			move := statements.Named("advance_cursors")
			err := tx.QueryRow(ctx, move.Text, move.Args(pgx.NamedArgs{"chain_id": g.chainID, "contracts": g.names,
				"backfill": g.backfill, "moves": g.moves, "registries": g.contracts, "from": a.From, "rewinds": rewinds,
				"next": a.To + 1, "blocks": anchors, "head": a.Head, "finalized": a.Finalized, "settled": a.Settled,
				"checks": a.Checks})...).Scan(&moved, &orphans)
			if err == nil && moved < len(list) {
				return cursor.ErrMoved
			}
			if err == nil && rewinds {
				_, err = tx.Exec(ctx, statements.Text("forget_transfers"), g.chainID, g.contracts, g.backfill, a.From,
					g.next)
			}
			if err == nil {
				done, err = s.acceptRead(ctx, tx, g, rows, a, orphans)
			}
			if err == nil && g.end != nil && a.To >= *g.end {
				_, err = tx.Exec(ctx,
					`DELETE FROM herald.chain_cursors WHERE chain_id = $1 AND contracts = ANY($2) AND backfill = $3`,
					g.chainID, g.names, g.backfill)
			}
			return err
		})
	})
	if err != nil {
		return Advanced{}, err // nothing was committed, so nothing was dispatched
	}
	for _, c := range list {
		if rewinds {
			c.Reorgs++
		}
		c.Next, c.Anchors, c.Checks = a.To+1, a.Anchors, a.Checks
		c.Head, c.Finalized, c.Settled = a.Head, a.Finalized, a.Settled
		c.Moves++
	}
	return done, nil
}

// cursorGroup has the keys of the cursors that one AdvanceCursors moves, and the values that they have in common.
type cursorGroup struct {
	chainID   uint64
	backfill  string
	names     []string // Contracts of each cursor
	moves     []int64  // Moves of each cursor
	contracts []string // all addresses in names; a backfill has several in one name
	next      uint64
	end       *uint64
}

func newCursorGroup(list []*cursor.Cursor) cursorGroup {
	one := list[0]
	g := cursorGroup{chainID: one.ChainID, backfill: one.Backfill, next: one.Next, end: one.End}
	for _, c := range list {
		g.names, g.moves = append(g.names, c.Contracts), append(g.moves, c.Moves)
		g.contracts = append(g.contracts, strings.Split(c.Contracts, ",")...)
	}
	return g
}

// emitterOf returns the address of the contract that emitted a job's event, in lower case.
func emitterOf(j job.Job) string {
	if j.Kind == job.KindValidationResponse {
		return strings.ToLower(j.ValidationRegistry.Hex())
	}
	return strings.ToLower(j.ReputationRegistry.Hex())
}
