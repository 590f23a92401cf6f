package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MaxFollowers is the largest number of deliveries that one ClaimFollowers claims. It is one statement, during which
// the agent is locked.
const MaxFollowers = 49

// Follower is the claim of a delivery that is sent in the call of another delivery of its agent, the leader. It has no
// task, so a wait after the call stays in Postgres.
type Follower struct {
	*Claim
	Err     error // ErrUnreadableJob, or nil
	blocked bool  // the delivery was waiting for an earlier delivery of its ordering key (behind_earlier)
}

// ClaimFollowers claims at most n deliveries that can be sent in one call with the leader. These are new feedback with
// the leader's action: the next ones of the agent's backlog, and those that wait for the leader or for one of these
// (behind_earlier). They are returned in the order in which they are sent. Those of one ordering key are in the order
// of their index, and no open delivery between them is left out. The caller must hold the leader's claim.
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

// GiveBack undoes claims that one ClaimFollowers returned and the agent did not process: the deliveries return to the
// backlog, or wait on, and their attempts are deleted. It skips claims that were lost.
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
