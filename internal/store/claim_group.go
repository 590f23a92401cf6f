package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// claimRequest asks to claim a delivery for its first task (n = 1).
type claimRequest struct {
	id    uuid.UUID
	lease time.Duration
}

// claimGroup claims several deliveries in one statement and one commit. A request gets no answer if its delivery is waiting,
// cannot be claimed or is locked by another transaction, if it is the second one for a delivery, or if its lease
// differs from the group's. The coalescer then calls claimAlone for it.
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

// claimAlone claims one delivery for its first task, if claimGroup gave no answer.
func (s *Store) claimAlone(ctx context.Context, q claimRequest) (*Claim, error) {
	return s.claimAgain(ctx, q.id, 1, q.lease)
}
