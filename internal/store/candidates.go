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

// compareDelivery answers a job whose key has a delivery. The first job stays unless the chain refutes it. A job with
// another content or position is stored as a candidate (candidate.sql) while the delivery can still be called with
// another job, even if the answer is Conflict. Intakes cannot ask the chain, so if the delivery or an earlier candidate
// has another action, the answer is Conflict and never Known.
func (s *Store) compareDelivery(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	out Acceptance) (Acceptance, error) {
	field, differs := brought.Conflict(known)
	contested := brought.ActionSum() != known.ActionSum() || !a.sameHeaders(h.sealed)
	isMove := a.readBy != nil && !differs // then compareRead moves the delivery's job instead
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

// sameHeaders reports whether the arrival's headers have the same content as a sealed value.
func (a arrival) sameHeaders(sealed []byte) bool {
	if a.SealedHeaders == nil || sealed == nil {
		return a.SealedHeaders == nil && sealed == nil
	}
	return a.SameHeaders != nil && a.SameHeaders(sealed)
}

// joinCandidates stores a job as a candidate of a delivery. contested reports whether another candidate has a different
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

// actionSum returns a hash of a job's action and its sealed headers. The same headers have another ciphertext each time
// they are sealed, so two actions with headers always differ; this package cannot decrypt them.
func actionSum(j job.Job, sealed []byte) job.Sum {
	sum := j.ActionSum()
	if sealed != nil {
		sum = sha256.Sum256(append(sum[:], sealed...))
	}
	return sum
}

// transactionOf returns the transaction hash that a job names, or "" if it names none. succeed.sql tries the candidates
// that name a transaction before the others. For a retraction, transactionOf returns "" too: a reorg removed the
// transaction of the retracted event, so its absence from the chain does not show that the retraction is wrong.
func transactionOf(j job.Job) string {
	if j.TransactionHash == (common.Hash{}) || j.IsRetraction() {
		return ""
	}
	return j.TransactionHash.Hex()
}

// queueSucceed queues the statements that follow when the chain did not have the event as the job says: check the job
// again if it was moved, or else replace it by a candidate.
func (s *Store) queueSucceed(b *pgx.Batch, c *Claim) {
	event, action := c.Job.EventSum(), actionSum(c.Job, c.SealedHeaders)
	b.Queue(statement("ask_again"), c.ID, c.No, c.rank)
	b.Queue(statement("succeed"), c.ID, c.No, c.rank, transactionOf(c.Job), event[:], action[:])
}

// readSucceeded reads the answers to the statements of queueSucceed. next is when the wait that record.sql stored ends.
// readSucceeded reports whether the delivery continues, because a candidate replaced its job or because its job got a
// new position since the claim. It also returns the time until which the delivery waits: that of the candidate, or next
// if no candidate replaced the job. A nil time means that the delivery does not wait.
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
