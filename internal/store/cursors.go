package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// CursorKey identifies a cursor. The cursor of a contract follows one contract. The cursor of a backfill reads a block
// range of one or more contracts.
type CursorKey struct {
	ChainID   uint64
	Contracts string // lower-case address; those of a backfill are separated by commas
	Backfill  string // block range of a backfill, as text; empty: the cursor follows one contract without an end
}

// Cursor stores how far the blocks of a contract, or of a backfill, have been read.
type Cursor struct {
	CursorKey
	Start   uint64   // first block to read
	End     *uint64  // last block to read, for a backfill; nil: there is no last block
	Next    uint64   // next block to read
	Anchors []Anchor // some blocks that were read, oldest first; a different hash later reveals a reorg
	Head    uint64   // number of the chain's newest block when the cursor last moved

	Finalized uint64          // number of the newest finalized block, as the nodes reported it; 0: unknown
	Settled   uint64          // newest block that no reorg is expected to replace; events up to it are not remembered
	Reorgs    uint64          // how often the cursor moved back to read replaced blocks again
	Checks    json.RawMessage // encoded follower.Checks: which blocks were checked for omitted logs; nil: all
	moves     int64           // how often the cursor has moved, to detect moves by other processes
}

// Anchor identifies a block that was read from the chain.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // timestamp of the block; 0: unknown
}

// ErrCursorMoved is returned if another process has moved the cursor. The call stored nothing.
var ErrCursorMoved = errors.New("another process reads this chain too and has moved its cursor")

// OpenCursor reads the cursor with this key. If it does not exist, OpenCursor inserts it; start is then its first
// block, and end is its last block (nil: it has no last block). For an existing cursor, start and end are ignored.
func (s *Store) OpenCursor(ctx context.Context, key CursorKey, start uint64, end *uint64) (c Cursor, err error) {
	ctx, endCall := s.StartCall(ctx, &err, "read the cursor of chain %d", key.ChainID)
	defer endCall()
	c.CursorKey = key
	for { // no row if another transaction was just inserting the cursor: the next run reads it
		err = s.Conns.QueryRow(ctx, statements.Text("open_cursor"), key.ChainID, key.Contracts, key.Backfill,
			start, end).
			Scan(&c.Start, &c.End, &c.Next, &c.Anchors, &c.Head, &c.Finalized, &c.Settled, &c.Reorgs,
				&c.moves, &c.Checks)
		if !errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil {
			return c, err
		}
	}
}

// RestartCursor sets another first block for a contract's cursor that has read no block yet, in Postgres and in c. It
// returns ErrCursorMoved if the cursor has read a block, or if another process has moved it.
func (s *Store) RestartCursor(ctx context.Context, c *Cursor, start uint64) (err error) {
	ctx, end := s.StartCall(ctx, &err, "restart the cursor of chain %d at block %d", c.ChainID, start)
	defer end()
	err = s.Conns.QueryRow(ctx, `UPDATE herald.chain_cursors
		   SET start_block = $4, next_block = $4, moves = moves + 1, updated_at = now()
		 WHERE chain_id = $1 AND contracts = $2 AND backfill = '' AND moves = $3 AND next_block = start_block
		   AND blocks = '[]'
		RETURNING moves`, c.ChainID, c.Contracts, c.moves, start).Scan(&c.moves)
	if err == nil {
		c.Start, c.Next = start, start
	}
	return postgres.NoRows(err, ErrCursorMoved)
}

// HasReadNothing reports whether the cursor has read no block yet.
func (c *Cursor) HasReadNothing() bool { return c.Next == c.Start && len(c.Anchors) == 0 }

// Advance describes consecutive blocks of a chain that were read, with their events.
type Advance struct {
	// From and To are the first and the last block that were read. If From is before the cursor's Next, a reorg
	// replaced the blocks from From on, and they were read again.
	From, To  uint64
	Head      uint64          // as in Cursor
	Finalized uint64          // as in Cursor
	Settled   uint64          // as in Cursor
	AtHead    bool            // the head at the last reorg was reached: orphaned events not read again are gone
	Anchors   []Anchor        // replace those of Cursor
	Checks    json.RawMessage // as in Cursor
	Intakes   []Intake        // jobs made from the blocks' events, in the chain's order
}

// Advanced is the result of AdvanceCursors.
type Advanced struct {
	Answers  []Acceptance // element i answers Advance.Intakes[i]
	Tasks    []Task       // tasks to put into Redis
	Vanished []Vanished   // deliveries whose events a reorg removed
}

// AdvanceCursors accepts the jobs of the blocks that were read, ends deliveries whose events a reorg removed, and moves
// the cursors to the block after a.To, in one transaction. It also updates the elements of cursors. All cursors are of
// one chain and have the same Next. They are cursors of contracts, or one cursor of a backfill, which is deleted after
// its last block. The number of jobs has no limit, unlike that of Accept. See docs/design/chain.md.
//
// It returns ErrCursorMoved, and stores nothing, if another process has moved one of the cursors.
func (s *Store) AdvanceCursors(ctx context.Context, cursors []*Cursor, a Advance) (done Advanced, err error) {
	g := newCursorGroup(cursors)
	ctx, end := s.StartCall(ctx, &err, "accept %d jobs of chain %d from blocks %d to %d", len(a.Intakes), g.chainID,
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
	for i, r := range rows {
		rows[i].readBy, rows[i].read = &CursorKey{g.chainID, emitterOf(r.Job), g.backfill}, true
	}
	rewinds := a.From < g.next
	err = s.retryAccept(ctx, func() error {
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
			var moved int
			var orphans bool
			move := statements.Named("advance_cursors")
			err := tx.QueryRow(ctx, move.Text, move.Args(pgx.NamedArgs{"chain_id": g.chainID, "contracts": g.names,
				"backfill": g.backfill, "moves": g.moves, "registries": g.contracts, "from": a.From, "rewinds": rewinds,
				"next": a.To + 1, "blocks": anchors, "head": a.Head, "finalized": a.Finalized, "settled": a.Settled,
				"checks": a.Checks})...).Scan(&moved, &orphans)
			if err == nil && moved < len(cursors) {
				return ErrCursorMoved
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
	for _, c := range cursors {
		if rewinds {
			c.Reorgs++
		}
		c.Next, c.Anchors, c.Checks = a.To+1, a.Anchors, a.Checks
		c.Head, c.Finalized, c.Settled = a.Head, a.Finalized, a.Settled
		c.moves++
	}
	return done, nil
}

// cursorGroup has the keys of the cursors that one AdvanceCursors moves, and the values that they have in common.
type cursorGroup struct {
	chainID   uint64
	backfill  string
	names     []string // CursorKey.Contracts of each cursor
	moves     []int64  // Cursor.moves of each cursor
	contracts []string // all addresses in names; a backfill has several in one name
	next      uint64
	end       *uint64
}

func newCursorGroup(cursors []*Cursor) cursorGroup {
	one := cursors[0]
	g := cursorGroup{chainID: one.ChainID, backfill: one.Backfill, next: one.Next, end: one.End}
	for _, c := range cursors {
		g.names, g.moves = append(g.names, c.Contracts), append(g.moves, c.moves)
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

// LeadChain tries to acquire a lock for each cursor in keys, without waiting. It calls do with the keys whose locks it
// acquired, in any order. So at most one call at a time, in all processes, runs for a given cursor. LeadChain releases
// the locks when do returns. If it acquires no lock, it returns false and does not call do. The error is that of do or
// of Postgres.
func (s *Store) LeadChain(ctx context.Context, keys []CursorKey,
	do func(context.Context, []CursorKey) error) (bool, error) {
	locks := make(map[int64]CursorKey, len(keys))
	for _, key := range keys {
		sum := sha256.Sum256(fmt.Appendf(nil, "herald:%d:%s:%s", key.ChainID, key.Contracts, key.Backfill))
		locks[int64(binary.BigEndian.Uint64(sum[:8]))] = key
	}
	return s.LeadLocks(ctx, slices.Collect(maps.Keys(locks)), func(ctx context.Context, got []int64) error {
		led := make([]CursorKey, len(got))
		for i, lock := range got {
			led[i] = locks[lock]
		}
		return do(ctx, led)
	})
}

// CursorState is a cursor with the columns that operators see.
type CursorState struct {
	Cursor
	MovedAt time.Time // when the cursor last moved or was inserted

	StalledSince *time.Time // since when no block can be read; nil: blocks are read
	StalledWhy   string     // why no block can be read
}

// Cursors lists the cursors of a chain, or of all chains if chainID is 0, without their Anchors. It lists them by
// chain; within a chain, first the cursors of contracts, by address, and then those of backfills, by block range and
// addresses.
func (s *Store) Cursors(ctx context.Context, chainID uint64) (list []CursorState, err error) {
	ctx, end := s.StartCall(ctx, &err, "list how far chains were read")
	defer end()
	rows, _ := s.Conns.Query(ctx, statements.Text("cursors"), chainID)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c CursorState, err error) {
		err = row.Scan(&c.ChainID, &c.Contracts, &c.Backfill, &c.Start, &c.End, &c.Next, &c.Head, &c.Finalized,
			&c.Settled, &c.Reorgs, &c.MovedAt, &c.Checks, &c.StalledSince, &c.StalledWhy)
		return c, err
	})
}

// maxStall limits the text of StalledWhy, in bytes.
const maxStall = 500

// NoteStall stores that a cursor has read no blocks since a time, and why. If since is nil, it stores that blocks are
// read again.
func (s *Store) NoteStall(ctx context.Context, key CursorKey, since *time.Time, why string) (err error) {
	ctx, end := s.StartCall(ctx, &err, "note that chain %d is not read", key.ChainID)
	defer end()
	_, err = s.Conns.Exec(ctx, statements.Text("note_stall"), key.ChainID, key.Contracts, key.Backfill, since,
		storable.Text(why, maxStall))
	return err
}
