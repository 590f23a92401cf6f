package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MaxFollowers is the largest number of deliveries that one ClaimFollowers claims. It is limited because the agent's
// row is locked while they are claimed.
const MaxFollowers = 49

// Follower is the claim of a delivery that is sent in the same call as another delivery of its agent, the leader. A
// follower has no task in Redis: if it must wait after the call, Postgres stores the wait and no task is rescheduled.
type Follower struct {
	*Claim
	Err     error // ErrUnreadableJob if the stored job cannot be parsed, else nil
	blocked bool  // the delivery was waiting for an earlier delivery of its ordering key (behind_earlier)
}

// ClaimFollowers claims, for lease, at most n (and MaxFollowers) deliveries that can be sent in one call with the
// leader. A follower is a NewFeedback of the leader's agent with the leader's action. It is one of the next deliveries
// of the backlog, or waits for the leader or another follower (behind_earlier). Followers are returned in the order in
// which they must be sent: those of one ordering key by index, without skipping an open delivery between them. The
// caller must hold the leader's claim.
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

// GiveBack undoes claims of one ClaimFollowers that the agent did not process: because no call was made, or the agent
// ignored them in the call. Each delivery returns to the backlog or to its wait for an earlier one, and its attempt is
// deleted. It skips claims that were lost.
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
