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
	moves   int64    // how often it has moved
}

// Anchor is a block that was read, by its hash.
type Anchor struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
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
			Scan(&c.Start, &c.End, &c.Next, &c.Anchors, &c.Head, &c.moves)
		if !errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil {
			return c, err
		}
	}
}

// AdvanceCursor accepts what was read and moves the cursor c to its Next, Anchors and Head, in one transaction: both are
// committed or neither. Answers and tasks are Accept's; how many jobs there may be is bounded by the transaction's deadline
// alone.
//
// ErrCursorMoved: somebody has moved the cursor since c was read.
func (s *Store) AdvanceCursor(ctx context.Context, c *Cursor, in []Intake) (out []Acceptance, tasks []Task, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "accept %d jobs of chain %d up to block %d", len(in), c.ChainID, c.Next)
	anchors, err := json.Marshal(c.Anchors)
	if err != nil {
		return nil, nil, err
	}
	rows, err := newArrivals(in)
	if err != nil {
		return nil, nil, err
	}
	var moves int64
	err = s.retryAccept(ctx, func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, statement("advance_cursor"), c.ChainID, c.Follower, c.moves, c.Next, anchors,
				c.Head).Scan(&moves)
			if err != nil {
				return noRows(err, ErrCursorMoved)
			}
			out, tasks, err = s.acceptIn(ctx, tx, rows)
			return err
		})
	})
	if err != nil {
		return nil, nil, err // what was not committed was not dispatched
	}
	c.moves = moves
	return out, tasks, nil
}

// LeadChain is Lead for whoever reads a chain: one process at a time for each key. It keeps a connection of the pool.
func (s *Store) LeadChain(ctx context.Context, key CursorKey, do func(context.Context) error) (bool, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "herald:%d:%s", key.ChainID, key.Follower))
	return s.leadBy(ctx, int64(binary.BigEndian.Uint64(sum[:8])), do)
}
