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

// CursorKey identifies a cursor.
type CursorKey struct {
	ChainID  uint64
	Follower string // names the registries and the range of blocks that it reads
}

// Cursor is the state of a follower: how far it has read its chain.
type Cursor struct {
	CursorKey
	Start   uint64   // first block of the follower
	End     *uint64  // last block to read; nil: the follower never ends
	Next    uint64   // next block to read
	Anchors []Anchor // blocks that were read, oldest first
	Head    uint64   // the node's newest block at the last move

	Finalized uint64          // newest block that the nodes reported as finalized; 0: unknown
	Settled   uint64          // no reorg is expected to replace this block; events up to it are not retracted
	Reorgs    uint64          // how often blocks were read again
	Checks    json.RawMessage // chain.Checks; nil: blocks are checked before they are accepted, or never
	moves     int64           // how often the cursor has moved
}

// Anchor identifies a block that was read.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
	Time   uint64      `json:"time,omitempty"` // timestamp of the block; 0: unknown
}

// ErrCursorMoved means that another process moved the cursor, and that nothing was accepted.
var ErrCursorMoved = errors.New("another process reads this chain too and has moved its cursor")

// OpenCursor reads a cursor. If the cursor does not exist, it is inserted with the blocks from start to end.
func (s *Store) OpenCursor(ctx context.Context, key CursorKey, start uint64, end *uint64) (c Cursor, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the cursor of chain %d", key.ChainID)
	c.CursorKey = key
	for { // the statement does not see a cursor that another transaction is inserting
		err = s.pool.QueryRow(ctx, statement("open_cursor"), key.ChainID, key.Follower, start, end).
			Scan(&c.Start, &c.End, &c.Next, &c.Anchors, &c.Head, &c.Finalized, &c.Settled, &c.Reorgs, &c.moves, &c.Checks)
		if !errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil {
			return c, err
		}
	}
}

// RestartCursor sets another start block for a cursor that has read nothing. It returns ErrCursorMoved if the cursor
// has read a block, or if another process has moved it.
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

// HasReadNothing reports whether the cursor is still at its start.
func (c *Cursor) HasReadNothing() bool { return c.Next == c.Start && len(c.Anchors) == 0 }

// Advance is the result of reading consecutive blocks of a chain.
type Advance struct {
	// From and To are the first and the last block. If From is before the cursor's Next, the blocks from From on were
	// replaced.
	From, To  uint64
	Head      uint64          // the node's newest block
	Finalized uint64          // as in Cursor
	Settled   uint64          // as in Cursor
	AtHead    bool            // the chain was read up to its head: remaining orphaned events are gone
	Anchors   []Anchor        // as in Cursor
	Checks    json.RawMessage // as in Cursor
	Intakes   []Intake        // jobs of the blocks' events, in the chain's order
}

// Advanced is the result of AdvanceCursor.
type Advanced struct {
	Answers  []Acceptance // one per intake
	Tasks    []Task       // to put into Redis
	Vanished []Vanished   // deliveries whose events a reorg removed
}

// AdvanceCursor accepts the jobs of the blocks that were read, ends deliveries whose events a reorg removed, and moves
// the cursor c, in one transaction. Answers and Tasks are as those of Accept, but only the transaction's deadline
// limits the number of jobs. See docs/design/chain.md.
//
// It returns ErrCursorMoved if the cursor has moved since c was read.
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
		rows[i].readBy, rows[i].read = &c.CursorKey, true
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
		return Advanced{}, err // nothing was committed, so nothing was dispatched
	}
	if a.From < c.Next {
		c.Reorgs++
	}
	c.Next, c.Anchors, c.Head, c.Finalized, c.Settled, c.Checks, c.moves = a.To+1, a.Anchors, a.Head, a.Finalized, a.Settled,
		a.Checks, moves
	return done, nil
}

// LeadChain runs do in one process at a time for each key, as Lead does, and reports whether it was this process. It
// keeps a connection of the pool.
func (s *Store) LeadChain(ctx context.Context, key CursorKey, do func(context.Context) error) (bool, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "herald:%d:%s", key.ChainID, key.Follower))
	return s.leadBy(ctx, int64(binary.BigEndian.Uint64(sum[:8])), do)
}
