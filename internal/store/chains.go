package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// CursorState is a cursor as operators see it.
type CursorState struct {
	Cursor
	MovedAt time.Time // when it was moved last
}

// Cursors lists how far chains were read: of all followers of a chain, or of all chains (0).
func (s *Store) Cursors(ctx context.Context, chainID uint64) (list []CursorState, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list how far chains were read")
	rows, _ := s.pool.Query(ctx, statement("cursors"), chainID)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c CursorState, err error) {
		err = row.Scan(&c.ChainID, &c.Follower, &c.Start, &c.End, &c.Next, &c.Head, &c.Finalized, &c.Settled, &c.Reorgs,
			&c.MovedAt)
		return c, err
	})
}
