package store

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

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
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list how far chains were read")
	rows, _ := s.pool.Query(ctx, statement("cursors"), chainID)
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
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "note that chain %d is not read", key.ChainID)
	_, err = s.pool.Exec(ctx, statement("note_stall"), key.ChainID, key.Contracts, key.Backfill, since,
		storable.Text(why, maxStall))
	return err
}
