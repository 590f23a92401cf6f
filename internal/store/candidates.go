package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// compareDelivery answers a job whose key is that of a delivery. The first comer's job stands, unless the chain refutes
// it: a job that says another content or position joins the line behind the delivery, while that can still be called
// with another job, whatever is answered. Intakes have no chain to ask, so whatever stands before this job with another
// action makes it a conflict, and never silently known.
func (s *Store) compareDelivery(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	out Acceptance) (Acceptance, error) {
	field, differs := brought.Conflict(known)
	contested := brought.ActionSum() != known.ActionSum() || !a.sameHeaders(h.sealed)
	isMove := a.readBy != nil && !differs // the job in place is moved instead
	if !h.status.Final() && !h.called && !isMove && brought.EventSum() != known.EventSum() {
		others, err := s.joinCandidates(ctx, tx, a, h, brought)
		if err != nil {
			return out, err
		}
		contested = contested || others
	}
	switch {
	case differs:
		out.Verdict, out.Field = Conflict, field
	case contested:
		out.Verdict, out.Field = Conflict, "action"
	}
	return out, nil
}

func (a arrival) sameHeaders(sealed []byte) bool {
	if a.SealedHeaders == nil || sealed == nil {
		return a.SealedHeaders == nil && sealed == nil
	}
	return a.SameHeaders != nil && a.SameHeaders(sealed)
}

// joinCandidates puts a job into the line behind a delivery; contested tells whether one that stands there has another
// action.
func (s *Store) joinCandidates(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	j job.Job) (contested bool, err error) {
	var locked bool
	err = noRows(tx.QueryRow(ctx, statement("lock_known"), h.id, a.key, h.raw).Scan(&locked), errMoved)
	if err == nil {
		event, action := j.EventSum(), actionSum(j, a.SealedHeaders)
		err = tx.QueryRow(ctx, statement("candidate"), namedStatement("candidate").args(pgx.NamedArgs{
			"delivery_id": h.id, "transaction_hash": transactionOf(j), "event": event[:], "action": action[:],
			"registry": a.agent.Registry, "agent_id": a.agent.ID, "order_key": j.OrderKey(),
			"order_seq": fmt.Sprint(j.OrderSeq()),
			"job":       a.raw, "sealed_headers": a.SealedHeaders})...).Scan(&contested)
	}
	if err != nil {
		return false, fmt.Errorf("keep another job of %s: %w", a.key, err)
	}
	return contested, nil
}

// actionSum is of a job's action with its sealed headers. No two of those are alike, so that actions with headers
// always differ: here nobody can open them.
func actionSum(j job.Job, sealed []byte) job.Sum {
	sum := j.ActionSum()
	if sealed != nil {
		sum = sha256.Sum256(append(sum[:], sealed...))
	}
	return sum
}

// transactionOf is what tells in which order the jobs of an event are looked at (succeed.sql). The transaction of a
// retraction is on the chain no more: it refutes nobody, so whoever names another one goes before nobody.
func transactionOf(j job.Job) string {
	if j.TransactionHash == (common.Hash{}) || j.IsRetraction() {
		return ""
	}
	return j.TransactionHash.Hex()
}

// queueSucceed queues what lets the job be asked about again if it was moved, or else the next in line take over from
// the claim's job, after its outcome is recorded.
func (s *Store) queueSucceed(b *pgx.Batch, c *Claim) {
	event, action := c.Job.EventSum(), actionSum(c.Job, c.SealedHeaders)
	b.Queue(statement("ask_again"), c.ID, c.No, c.rank)
	b.Queue(statement("succeed"), c.ID, c.No, c.rank, transactionOf(c.Job), event[:], action[:])
}

// readSucceeded reads the answer to queueSucceed; next is until when the delivery waits, nil: it does not.
func readSucceeded(res pgx.BatchResults, next *time.Time) (bool, *time.Time, error) {
	var status Status
	var due *time.Time
	again, err := res.Exec()
	if err != nil {
		return false, next, fmt.Errorf("ask the chain about the job's new place: %w", err)
	}
	err = res.QueryRow().Scan(&status, &due)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return again.RowsAffected() > 0, next, nil
	case err != nil:
		return false, next, fmt.Errorf("let the next job take over: %w", err)
	}
	return true, due, nil
}
