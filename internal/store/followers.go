package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MaxFollowers bounds what one ClaimFollowers takes: one statement, with the agent locked.
const MaxFollowers = 49

// Follower is the claim of a delivery that goes in the call of another one of its agent, the leader. No task belongs to
// it: what waits afterwards does so in Postgres.
type Follower struct {
	*Claim
	Err     error // ErrUnreadableJob: what becomes of the delivery
	blocked bool  // it waited behind an earlier one of its client
}

// ClaimFollowers takes what can go in the same call as the leader, at most n: what its agent's line has next of new
// feedback with the same action, and what waits behind the leader or one of these for its client's order. They come in
// the order in which they are to be sent; of a client in the order of their index, and without one left out between. It
// must not be called without the leader's claim.
func (s *Store) ClaimFollowers(ctx context.Context, leader *Claim, n int, lease time.Duration) (all []Follower, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "claim what can go in the call of delivery %s", leader.ID)
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
		return nil, err // what was not committed was not claimed, else its leases run out
	}
	return all, nil
}

// GiveBack ends claims of one ClaimFollowers as if they had never been given: no attempt was made. Those that were lost
// meanwhile are passed over.
func (s *Store) GiveBack(ctx context.Context, all []Follower) (err error) {
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "give back %d deliveries that went in no call", len(all))
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
