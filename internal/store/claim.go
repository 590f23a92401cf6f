package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// clockTolerance is how long before the end of its wait a delivery may be claimed. A task may run that early, because
// Redis' clock may be ahead of Postgres' clock.
const clockTolerance = time.Second

// Claim claims the delivery with this id for its task, whose Task.N must be n. lease is the duration of the lease,
// which Postgres measures. Claim returns:
//   - a claim, if the delivery is queued, or its wait has ended;
//   - a claim with ErrUnreadableJob, if the stored job cannot be parsed;
//   - an *EarlyError, if the delivery's wait has not ended;
//   - nil without an error, if the task is outdated or the delivery cannot be claimed, for example because another
//     worker has claimed it.
//
// Concurrent calls share a statement (coalescer). If ctx ends while the statement runs, Claim still returns the claim,
// because Postgres may have committed it. The caller then records an outcome as usual.
func (s *Store) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (c *ledger.Claim, err error) {
	if n < 1 || n > math.MaxInt32 {
		return nil, nil // not a task of this store
	}
	ctx, end := s.StartCall(ctx, &err, "claim delivery %s", id)
	defer end()
	return s.claims.Do(ctx, claimRequest{id, n, lease})
}

// claimRequest is the request to claim a delivery for its task n.
type claimRequest struct {
	id    uuid.UUID
	n     int
	lease time.Duration
}

// claimGroup claims several queued deliveries in one statement and one commit. A request gets no answer in these cases,
// and the coalescer then calls claimAlone for it:
//   - The delivery waits, cannot be claimed, or is locked by another transaction.
//   - The group has an earlier request for the same delivery.
//   - The lease differs from that of the group's first request.
func (s *Store) claimGroup(ctx context.Context, group []claimRequest) ([]coalescer.Result[*ledger.Claim], error) {
	lease := group[0].lease
	positions := make(map[uuid.UUID]int, len(group))
	ids, ns := make([]uuid.UUID, 0, len(group)), make([]int, 0, len(group))
	for i, q := range group {
		if _, twice := positions[q.id]; !twice && q.lease == lease {
			positions[q.id] = i
			ids, ns = append(ids, q.id), append(ns, q.n)
		}
	}
	rows, err := s.Conns.Query(ctx, statements.Text("claim"), claimArgs(ids, ns, lease, nil)...)
	if err != nil {
		return nil, err
	}
	results := make([]coalescer.Result[*ledger.Claim], len(group))
	err = readClaims(rows, func(c *ledger.Claim, err error) {
		results[positions[c.ID]] = coalescer.Result[*ledger.Claim]{Answer: c, Err: err, Answered: true}
	})
	return results, err
}

// claimAlone claims one delivery in one round trip and one commit. Unlike claimGroup, it waits for a locked row, and
// claims a delivery whose wait has ended. Before that claim, yield.sql checks two conditions: no other delivery of the
// ordering key goes first, and fewer than MaxDispatchedPerAgent deliveries of the agent are dispatched. If one fails,
// the delivery returns to its agent's backlog.
func (s *Store) claimAlone(ctx context.Context, q claimRequest) (c *ledger.Claim, err error) {
	b := &pgx.Batch{}
	b.Queue(statements.Text("lock_agent_of"), q.id)
	b.Queue(statements.Text("yield"), q.id, q.n, clockTolerance, ledger.MaxDispatchedPerAgent, maxResponsesPerAgent)
	// A claim never locks history: some transactions lock the row of history first, and others that of work.
	b.Queue(`SELECT FROM herald.work WHERE id = $1 FOR NO KEY UPDATE`, q.id)
	tolerance := clockTolerance
	var unreadable error // returned with the claim; if SendBatch returned this error, the claim would be lost
	args := claimArgs([]uuid.UUID{q.id}, []int{q.n}, q.lease, &tolerance)
	b.Queue(statements.Text("claim"), args...).Query(func(rows pgx.Rows) error {
		return readClaims(rows, func(claimed *ledger.Claim, err error) { c, unreadable = claimed, err })
	})
	if err := s.Conns.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, s.explainRefusal(ctx, q.id, q.n)
	}
	return c, unreadable
}

func claimArgs(ids []uuid.UUID, ns []int, lease time.Duration, tolerance *time.Duration) []any {
	return statements.Named("claim").Args(pgx.NamedArgs{"ids": encodeIDs(ids), "ns": ns, "lease": lease,
		"recent": ledger.RecentSuccess, "tolerance": tolerance})
}

// encodeIDs returns ids in a type that pgx encodes without reflection. pgx encodes []uuid.UUID ten times as slowly.
func encodeIDs(ids []uuid.UUID) []pgtype.UUID {
	out := slices.Grow([]pgtype.UUID(nil), len(ids))
	for _, id := range ids {
		out = append(out, pgtype.UUID{Bytes: id, Valid: true})
	}
	return out
}

// readClaims reads the rows of claim.sql or claim_members.sql. It calls add for each claim, with ErrUnreadableJob if
// the stored job cannot be parsed.
func readClaims(rows pgx.Rows, add func(*ledger.Claim, error)) error {
	var r claimRow
	_, err := pgx.ForEachRow(rows, []any{&r.ID, &r.N, &r.No, &r.Attempt, &r.StartedAt, &r.LeaseUntil, &r.job,
		&r.SealedHeaders, &r.Key, &r.Kind, &r.CreatedAt, &r.Called, &r.RowAgent.ChainID, &r.RowAgent.Registry,
		&r.RowAgent.ID, &r.Epoch, &r.Enabled, &r.base, &r.FetchFailures, &r.Replay, &r.policy, &r.own, &r.Protocol,
		&r.Succeeded, &r.Hints, &r.Bound, &r.Verified, &r.Source.Name, &r.Source.Trust, &r.Corrected, &r.Traceparent,
		&r.AheadOf, &r.MayCall, &r.Waited, &r.unfinished}, func() error {
		add(r.toClaim())
		return nil
	})
	return err
}

// claimRow is a row that claim.sql or claim_members.sql returns.
type claimRow struct {
	ledger.Claim
	job, policy, own []byte
	base             int
	unfinished       int // number of the latest earlier attempt without an outcome; 0: none
}

// toClaim returns the claim of the row.
func (r *claimRow) toClaim() (*ledger.Claim, error) {
	c := r.Claim
	c.Budget, c.Policy, c.OwnPolicy = max(c.Attempt-r.base, 1), policy.ParseStored(r.policy), policy.ParseStored(r.own)
	c.Again = c.N > 1 || c.Waited
	c.Unfinished = r.unfinished > 0
	mayBeCalled := c.Bound || !c.Verified // if workers check the event, they call the agent only after Bind
	c.InDoubt = mayBeCalled && r.unfinished > r.base
	c.Called = c.Called || mayBeCalled && c.Unfinished
	if err := c.Job.UnmarshalJSON(r.job); err != nil { // json.Unmarshal would validate the job a second time
		c.Job = job.Job{}
		return &c, fmt.Errorf("%w: %w", ledger.ErrUnreadableJob, err)
	}
	return &c, nil
}

// explainRefusal returns an *EarlyError if task n cannot claim the delivery because the delivery still waits with that
// task. For any other cause it returns nil.
func (s *Store) explainRefusal(ctx context.Context, id uuid.UUID, n int) error {
	var early ledger.EarlyError
	err := s.Conns.QueryRow(ctx, `SELECT next_attempt_at - now(), coalesce(reason, ''), coalesce(error, '')
		   FROM herald.work
		  WHERE id = $1 AND dispatch = $2 AND status = 'waiting' AND handed_at IS NOT NULL`,
		id, n).Scan(&early.Left, &early.Reason, &early.Text)
	if err != nil {
		return postgres.NoRows(err, nil)
	}
	return &early
}

// Extend sets the end of the claim's lease to now plus d, by Postgres' clock, in Postgres and in c. It returns
// ErrFenced if the claim is lost or its lease has expired.
func (s *Store) Extend(ctx context.Context, c *ledger.Claim, d time.Duration) (err error) {
	ctx, end := s.StartCall(ctx, &err, "extend the lease of delivery %s", c.ID)
	defer end()
	var until time.Time
	err = s.Conns.QueryRow(ctx,
		`UPDATE herald.work SET lease_until = now() + $3::interval, updated_at = now()
		  WHERE id = $1 AND claim_no = $2 AND status = 'running' AND lease_until > now() RETURNING lease_until`,
		c.ID, c.No, d).Scan(&until)
	if err != nil {
		return postgres.NoRows(err, ledger.ErrFenced)
	}
	c.LeaseUntil = until
	return nil
}
