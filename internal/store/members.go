package store

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ClaimMembers claims deliveries that can be sent in one call with the leader, whose claim the caller must have. It
// claims at most n of them, and at most MaxMembers. Each is a NewFeedback of the leader's agent with the leader's
// action. It was one of the next deliveries of the backlog, or waited for the leader or another Member
// (behind_earlier). The result is in the order in which the deliveries must be sent: those of one ordering key by
// index, with no open delivery of that key omitted between them.
func (s *Store) ClaimMembers(ctx context.Context, leader *ledger.Claim, n int,
	lease time.Duration) (all []ledger.Member, err error) {
	ctx, end := s.StartCall(ctx, &err, "claim deliveries for the batch of delivery %s", leader.ID)
	defer end()
	a := leader.Agent()
	b := &pgx.Batch{}
	b.Queue(statements.Text("lock_agent"), a.ChainID, a.Registry, a.ID)
	queueNamed(b, statements.Named("claim_members"), pgx.NamedArgs{
		"chain_id": a.ChainID, "registry": a.Registry, "agent_id": a.ID, "leader": leader.ID,
		"limit": min(n, ledger.MaxMembers), "lease": lease, "recent": ledger.RecentSuccess}).
		Query(func(rows pgx.Rows) error {
			return readClaims(rows, func(c *ledger.Claim, err error) {
				all = append(all, ledger.Member{Claim: c, Err: err})
			})
		})
	if err := s.Conns.SendBatch(ctx, b).Close(); err != nil {
		return nil, err // if Postgres has committed the claims nevertheless, their leases expire
	}
	return all, nil
}

// GiveBack undoes claims of one ClaimMembers. The agent must have done nothing with these deliveries: no call was
// made, or the agent ignored them in the call. Each delivery returns to the backlog or to its wait (behind_earlier),
// and its attempt does not count. GiveBack skips claims that are lost.
func (s *Store) GiveBack(ctx context.Context, all []ledger.Member) (err error) {
	if len(all) == 0 {
		return nil
	}
	ctx, end := s.StartCall(ctx, &err, "release deliveries (%d) that were in no call", len(all))
	defer end()
	var ids []uuid.UUID
	var claimNos []int64
	var blocked []bool
	for _, f := range all {
		ids, claimNos = append(ids, f.ID), append(claimNos, f.No)
		blocked = append(blocked, f.Waited)
	}
	a := all[0].Agent()
	b := &pgx.Batch{}
	b.Queue(statements.Text("lock_agent"), a.ChainID, a.Registry, a.ID)
	b.Queue(`UPDATE herald.work SET turn = false
		WHERE id = ANY($1) AND claim_no = ANY($2) AND status = 'running'`, ids, claimNos)
	b.Queue(statements.Text("give_back"), ids, claimNos, blocked)
	return s.Conns.SendBatch(ctx, b).Close()
}
