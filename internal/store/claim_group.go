package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// claimRequest is a first claim: n is 1.
type claimRequest struct {
	id    uuid.UUID
	lease time.Duration
}

// claimGroup claims several deliveries in one statement and one commit. It leaves to claimAlone what is not plain: rows
// that wait, are refused or that somebody holds, a delivery asked for twice, a lease that is not the group's.
func (s *Store) claimGroup(ctx context.Context, group []claimRequest) ([]result[*Claim], error) {
	lease := group[0].lease
	positions := make(map[uuid.UUID]int, len(group))
	ids := make([]uuid.UUID, 0, len(group))
	for i, q := range group {
		if _, twice := positions[q.id]; !twice && q.lease == lease {
			positions[q.id] = i
			ids = append(ids, q.id)
		}
	}

	rows, err := s.pool.Query(ctx, statement("claim_group"), ids, lease, RecentSuccess)
	if err != nil {
		return nil, err
	}
	results := make([]result[*Claim], len(group))
	var row claimRow
	_, err = pgx.ForEachRow(rows, append(row.fields(), &row.ID), func() error {
		r := &results[positions[row.ID]]
		r.answer, r.err = row.claim(1, 0)
		r.answered = true
		return nil
	})
	return results, err
}

// claimAlone claims one delivery for its first task as for any other.
func (s *Store) claimAlone(ctx context.Context, q claimRequest) (*Claim, error) {
	return s.claimAgain(ctx, q.id, 1, q.lease)
}
