// Package cursor stores how far the blocks of each contract of a chain, and of each backfill, have been read. The chain
// follower (internal/door/watch) opens and leads cursors. The ledger (store.Store.AdvanceCursors) moves them, in the
// transaction that accepts the jobs of the blocks.
package cursor

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

var statements = postgres.ReadStatements(files)

// Table is the table of the cursors. Safe for concurrent use.
type Table struct{ db *postgres.Pool }

// New returns the cursors of the pool's database.
func New(pool *postgres.Pool) *Table { return &Table{db: pool} }

// Key identifies a cursor. The cursor of a contract follows one contract. The cursor of a backfill reads a block
// range of one or more contracts.
type Key struct {
	ChainID   uint64
	Contracts string // lower-case address; those of a backfill are separated by commas
	Backfill  string // block range of a backfill, as text; empty: the cursor follows one contract without an end
}

// Cursor stores how far the blocks of a contract, or of a backfill, have been read.
type Cursor struct {
	Key
	Start   uint64   // first block to read
	End     *uint64  // last block to read, for a backfill; nil: there is no last block
	Next    uint64   // next block to read
	Anchors []Anchor // some blocks that were read, oldest first; a different hash later reveals a reorg
	Head    uint64   // number of the chain's newest block when the cursor last moved

	Finalized uint64          // number of the newest finalized block, as the nodes reported it; 0: unknown
	Settled   uint64          // newest block that no reorg is expected to replace; events up to it are not remembered
	Reorgs    uint64          // how often the cursor moved back to read replaced blocks again
	Checks    json.RawMessage // encoded follower.Checks: which blocks were checked for omitted logs; nil: all
	Moves     int64           // how often the cursor has moved, to detect moves by other processes
	// Orphaned, read by OpenCursor, is the newest replaced block with an event that was not read again; 0: none. If it
	// is not below Next, the blocks that a reorg replaced were only partly read again.
	Orphaned uint64
}

// Anchor identifies a block that was read from the chain.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // timestamp of the block; 0: unknown
}

// ErrMoved is returned if another process has moved the cursor. The call stored nothing.
var ErrMoved = errors.New("another process reads this chain too and has moved its cursor")

// OpenCursor reads the cursor with this key. If it does not exist, OpenCursor inserts it; start is then its first
// block, and end is its last block (nil: it has no last block). For an existing cursor, start and end are ignored.
func (t *Table) OpenCursor(ctx context.Context, key Key, start uint64, end *uint64) (c Cursor, err error) {
	ctx, endCall := t.db.StartCall(ctx, &err, "read the cursor of chain %d", key.ChainID)
	defer endCall()
	c.Key = key
	for { // no row if another transaction was just inserting the cursor: the next run reads it
		err = t.db.Conns.QueryRow(ctx, statements.Text("open_cursor"), key.ChainID, key.Contracts, key.Backfill,
			start, end).
			Scan(&c.Start, &c.End, &c.Next, &c.Anchors, &c.Head, &c.Finalized, &c.Settled, &c.Reorgs,
				&c.Moves, &c.Checks, &c.Orphaned)
		if !errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil {
			return c, err
		}
	}
}

// RestartCursor sets another first block for a contract's cursor that has read no block yet, in Postgres and in c. It
// returns ErrMoved if the cursor has read a block, or if another process has moved it.
func (t *Table) RestartCursor(ctx context.Context, c *Cursor, start uint64) (err error) {
	ctx, end := t.db.StartCall(ctx, &err, "restart the cursor of chain %d at block %d", c.ChainID, start)
	defer end()
	err = t.db.Conns.QueryRow(ctx, `UPDATE herald.chain_cursors
		   SET start_block = $4, next_block = $4, moves = moves + 1, updated_at = now()
		 WHERE chain_id = $1 AND contracts = $2 AND backfill = '' AND moves = $3 AND next_block = start_block
		   AND blocks = '[]'
		RETURNING moves`, c.ChainID, c.Contracts, c.Moves, start).Scan(&c.Moves)
	if err == nil {
		c.Start, c.Next = start, start
	}
	return postgres.NoRows(err, ErrMoved)
}

// HasReadNothing reports whether the cursor has read no block yet.
func (c *Cursor) HasReadNothing() bool { return c.Next == c.Start && len(c.Anchors) == 0 }

// LeadChain tries to acquire a lock for each cursor in keys, without waiting. It calls do with the keys whose locks it
// acquired, in any order. So at most one call at a time, in all processes, runs for a given cursor. LeadChain releases
// the locks when do returns. If it acquires no lock, it returns false and does not call do. The error is that of do or
// of Postgres.
func (t *Table) LeadChain(ctx context.Context, keys []Key,
	do func(context.Context, []Key) error) (bool, error) {
	locks := make(map[int64]Key, len(keys))
	for _, key := range keys {
		sum := sha256.Sum256(fmt.Appendf(nil, "herald:%d:%s:%s", key.ChainID, key.Contracts, key.Backfill))
		locks[int64(binary.BigEndian.Uint64(sum[:8]))] = key
	}
	return t.db.LeadLocks(ctx, slices.Collect(maps.Keys(locks)), func(ctx context.Context, got []int64) error {
		led := make([]Key, len(got))
		for i, lock := range got {
			led[i] = locks[lock]
		}
		return do(ctx, led)
	})
}

// State is a cursor with the columns that operators see.
type State struct {
	Cursor
	MovedAt time.Time // when the cursor last moved or was inserted

	StalledSince *time.Time // since when no block can be read; nil: blocks are read
	StalledWhy   string     // why no block can be read
}

// Cursors lists the cursors of a chain, or of all chains if chainID is 0, without their Anchors. It lists them by
// chain; within a chain, first the cursors of contracts, by address, and then those of backfills, by block range and
// addresses.
func (t *Table) Cursors(ctx context.Context, chainID uint64) (list []State, err error) {
	ctx, end := t.db.StartCall(ctx, &err, "list how far chains were read")
	defer end()
	rows, _ := t.db.Conns.Query(ctx, statements.Text("cursors"), chainID)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c State, err error) {
		err = row.Scan(&c.ChainID, &c.Contracts, &c.Backfill, &c.Start, &c.End, &c.Next, &c.Head, &c.Finalized,
			&c.Settled, &c.Reorgs, &c.MovedAt, &c.Checks, &c.StalledSince, &c.StalledWhy)
		return c, err
	})
}

// maxStall limits the text of StalledWhy, in bytes.
const maxStall = 500

// NoteStall stores that a cursor has read no blocks since a time, and why. If since is nil, it stores that blocks are
// read again.
func (t *Table) NoteStall(ctx context.Context, key Key, since *time.Time, why string) (err error) {
	ctx, end := t.db.StartCall(ctx, &err, "note that chain %d is not read", key.ChainID)
	defer end()
	_, err = t.db.Conns.Exec(ctx, statements.Text("note_stall"), key.ChainID, key.Contracts, key.Backfill, since,
		storable.Text(why, maxStall))
	return err
}
