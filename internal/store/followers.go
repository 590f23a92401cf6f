package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MaxFollowers limits one ClaimFollowers, which is one statement with the agent locked.
const MaxFollowers = 49

// Follower is the claim of a delivery that is sent in the call of another delivery of its agent, the leader. It has no
// task, so a wait after the call stays in Postgres.
type Follower struct {
	*Claim
	Err     error // ErrUnreadableJob, or nil
	blocked bool  // it was waiting for an earlier delivery of its ordering key
}

// ClaimFollowers claims at most n deliveries that can be sent in the same call as the leader: from the agent's backlog,
// the next new feedback with the same action; and feedback that waits for the leader or for one of these
// (behind_earlier). They are in sending order; those of one ordering key are in the order of their index, without a
// gap. The caller must hold the leader's claim.
func (s *Store) ClaimFollowers(ctx context.Context, leader *Claim, n int, lease time.Duration) (all []Follower, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "claim deliveries for the batch of delivery %s", leader.ID)
	a := leader.Agent()
	b := &pgx.Batch{}
	b.Queue(statement("lock_agent"), a.ChainID, a.Registry, a.ID)
	b.Queue(statement("claim_followers"), a.ChainID, a.Registry, a.ID, leader.ID, min(n, MaxFollowers), lease,
		RecentSuccess, s.strict).Query(func(rows pgx.Rows) error {
		var row claimRow
		var f Follower
		var unfinished int
		_, err := pgx.ForEachRow(rows, append(row.fields(), &row.ID, &row.N, &unfinished, &f.blocked), func() error {
			row.Again = row.N > 1 || f.blocked
			f.Claim, f.Err = row.claim(row.N, unfinished)
			all = append(all, f)
			return nil
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, err // nothing was committed, or the leases of the claims expire
	}
	return all, nil
}

// GiveBack undoes claims of one ClaimFollowers: no attempt counts. It skips claims that were lost.
func (s *Store) GiveBack(ctx context.Context, all []Follower) (err error) {
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "release %d deliveries that were in no call", len(all))
	var ids []uuid.UUID
	var claimNos []int64
	var blocked []bool
	for _, f := range all {
		ids, claimNos = append(ids, f.ID), append(claimNos, f.No)
		blocked = append(blocked, f.blocked)
	}
	a := all[0].Agent()
	b := &pgx.Batch{}
	b.Queue(statement("lock_agent"), a.ChainID, a.Registry, a.ID)
	b.Queue(statement("give_back"), ids, claimNos, blocked, all[0].StartedAt)
	return s.pool.SendBatch(ctx, b).Close()
}
