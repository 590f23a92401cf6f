package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// CursorKey names a cursor.
type CursorKey struct {
	ChainID  uint64
	Follower string // who reads the chain: which registries, and which range of blocks
}

// Cursor is how far a chain was read.
type Cursor struct {
	CursorKey
	Start   uint64   // the first block that was read
	End     *uint64  // the last that will be; nil: it follows the chain for ever
	Next    uint64   // the first block that was not read
	Anchors []Anchor // of the blocks that were, oldest first
	Head    uint64   // the node's newest block then

	Finalized uint64          // the newest block that the nodes called final; 0: not known
	Settled   uint64          // no reorg is expected to replace this block; events up to it are not taken back
	Reorgs    uint64          // how often blocks were read again
	Checks    json.RawMessage // chain.Checks; nil: all blocks are checked before they are accepted, or none
	moves     int64           // how often it has moved
}

// Anchor is a block that was read, by its hash.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // the block's timestamp; 0: unknown
}

// ErrCursorMoved means that somebody else moved the cursor, and that nothing was accepted.
var ErrCursorMoved = errors.New("somebody else reads this chain too and has moved its cursor")

// OpenCursor reads a cursor. When there is none it makes one that begins at start and ends at end.
func (s *Store) OpenCursor(ctx context.Context, key CursorKey, start uint64, end *uint64) (c Cursor, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the cursor of chain %d", key.ChainID)
	c.CursorKey = key
	for { // a cursor that is being made by somebody else is seen by neither half of the statement
		err = s.pool.QueryRow(ctx, statement("open_cursor"), key.ChainID, key.Follower, start, end).
			Scan(&c.Start, &c.End, &c.Next, &c.Anchors, &c.Head, &c.Finalized, &c.Settled, &c.Reorgs, &c.moves, &c.Checks)
		if !errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil {
			return c, err
		}
	}
}

// RestartCursor moves a cursor that has read nothing to another first block. ErrCursorMoved: it has read something, or
// another process has moved it.
func (s *Store) RestartCursor(ctx context.Context, c *Cursor, start uint64) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "restart the cursor of chain %d at block %d", c.ChainID, start)
	err = s.pool.QueryRow(ctx, `UPDATE herald.chain_cursors
		   SET start_block = $4, next_block = $4, moves = moves + 1, updated_at = now()
		 WHERE chain_id = $1 AND follower = $2 AND moves = $3 AND next_block = start_block AND blocks = '[]'
		RETURNING moves`, c.ChainID, c.Follower, c.moves, start).Scan(&c.moves)
	if err == nil {
		c.Start, c.Next = start, start
	}
	return noRows(err, ErrCursorMoved)
}

// HasReadNothing reports whether the cursor is where it began.
func (c *Cursor) HasReadNothing() bool { return c.Next == c.Start && len(c.Anchors) == 0 }

// Advance is what was read of a chain: blocks that follow each other.
type Advance struct {
	From, To  uint64          // the first and the last block. From before the cursor: what was read from there on was replaced
	Head      uint64          // the node's newest block
	Finalized uint64          // as in Cursor
	Settled   uint64          // as in Cursor
	AtHead    bool            // what was not found up to To is on the chain no more
	Anchors   []Anchor        // as in Cursor
	Checks    json.RawMessage // as in Cursor
	Intakes   []Intake        // what the blocks hold, in the chain's order
}

// Advanced is what became of it.
type Advanced struct {
	Answers  []Acceptance // one for each intake
	Tasks    []Task       // for Redis
	Vanished []Vanished   // what a reorg took off the chain
}

// AdvanceCursor accepts what was read, ends what a reorg took off the chain, and moves the cursor c, in one transaction:
// all is committed or nothing. Answers and tasks are Accept's; how many jobs there may be is bounded by the
// transaction's deadline alone.
//
// ErrCursorMoved: somebody has moved the cursor since c was read.
func (s *Store) AdvanceCursor(ctx context.Context, c *Cursor, a Advance) (done Advanced, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "accept %d jobs of chain %d from blocks %d to %d", len(a.Intakes), c.ChainID, a.From, a.To)
	anchors, err := json.Marshal(a.Anchors)
	if err != nil {
		return Advanced{}, err
	}
	rows, err := newArrivals(a.Intakes)
	if err != nil {
		return Advanced{}, err
	}
	for i := range rows {
		rows[i].readBy = &c.CursorKey
	}
	var moves int64
	var orphans bool
	err = s.retryAccept(ctx, func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			move := namedStatement("advance_cursor")
			err := tx.QueryRow(ctx, move.text, move.args(pgx.NamedArgs{"chain_id": c.ChainID, "follower": c.Follower,
				"moves": c.moves, "from": a.From, "next": a.To + 1, "blocks": anchors, "head": a.Head,
				"finalized": a.Finalized, "settled": a.Settled, "checks": a.Checks})...).Scan(&moves, &orphans)
			if err != nil {
				return noRows(err, ErrCursorMoved)
			}
			if a.From < c.Next {
				if _, err := tx.Exec(ctx, statement("forget_transfers"), c.ChainID, a.From, c.Next); err != nil {
					return fmt.Errorf("forget the transfers of replaced blocks: %w", err)
				}
			}
			done, err = s.acceptRead(ctx, tx, c.CursorKey, rows, a, orphans)
			return err
		})
	})
	if err != nil {
		return Advanced{}, err // what was not committed was not dispatched
	}
	if a.From < c.Next {
		c.Reorgs++
	}
	c.Next, c.Anchors, c.Head, c.Finalized, c.Settled, c.Checks, c.moves = a.To+1, a.Anchors, a.Head, a.Finalized, a.Settled,
		a.Checks, moves
	return done, nil
}

// LeadChain is Lead for whoever reads a chain: one process at a time for each key. It keeps a connection of the pool.
func (s *Store) LeadChain(ctx context.Context, key CursorKey, do func(context.Context) error) (bool, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "herald:%d:%s", key.ChainID, key.Follower))
	return s.leadBy(ctx, int64(binary.BigEndian.Uint64(sum[:8])), do)
}
