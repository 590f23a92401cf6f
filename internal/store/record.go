package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Record stores the outcome of the claim's attempt and dispatches the agent's next deliveries, in one round trip and
// one commit. Concurrent calls share a round trip and a commit if their outcomes are plain (isPlain). The caller puts
// the returned tasks into Redis. Calling Record again after an error is harmless.
//
// If the claim is lost, Record returns ErrFenced and changes nothing. The outcome Delivered is an exception, because
// the agent has the event and must not get it again:
//   - If the delivery has not ended, Record ends it as delivered and returns no error.
//   - If the delivery has ended, Record completes the row of the attempt, stores that the agent was called, and returns
//     ErrFenced.
func (s *Store) Record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (rec ledger.Recorded, err error) {
	ctx, end := s.StartCall(ctx, &err, "record delivery %s", c.ID)
	defer end()
	if err := o.CheckStatus(); err != nil {
		return ledger.Recorded{}, err
	}

	q := newRecordRequest(c, o)
	switch {
	case o.Gone != nil:
		rec, err = s.recordGone(ctx, q)
	case q.isPlain():
		rec, err = s.records.Do(ctx, q)
	default:
		rec, err = s.recordAlone(ctx, q)
	}
	if err != nil {
		return ledger.Recorded{}, err // nothing was committed, so nothing was dispatched
	}
	return rec, nil
}

// recordAlone records one outcome in one batch. It waits for the rows of the agent and of the delivery.
func (s *Store) recordAlone(ctx context.Context, q recordRequest) (ledger.Recorded, error) {
	a := q.claim.Agent()
	b := &pgx.Batch{}
	b.Queue(statements.Text("lock_agent"), a.ChainID, a.Registry, a.ID)
	written := queueRecord(b, q)
	if err := s.Conns.SendBatch(ctx, b).Close(); err != nil {
		return ledger.Recorded{}, err
	}
	return written.result()
}

// recordGone records the outcome of q, whose event is gone from the chain (Outcome.Gone), in one transaction with the
// retraction of the delivery.
func (s *Store) recordGone(ctx context.Context, q recordRequest) (rec ledger.Recorded, err error) {
	err = pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
		if err := s.lockAgentsOf(ctx, tx, q.claim, q.outcome); err != nil {
			return err
		}
		rec, err = s.recordIn(ctx, tx, q)
		return err
	})
	return rec, err
}

// lockAgentsOf locks the agent of the claim c, and that of the event whose delivery the outcome o inserts (Gone.Next).
func (s *Store) lockAgentsOf(ctx context.Context, tx pgx.Tx, c *ledger.Claim, o ledger.Outcome) error {
	agents := []erc8004.Agent{c.Agent()}
	if o.Gone != nil && o.Gone.Next != nil {
		agents = append(agents, ledger.AgentOf(*o.Gone.Next))
	}
	return s.LockAgents(ctx, tx, agents)
}

// recordIn records the outcome of q in tx, which has locked the agents (lockAgentsOf). If the delivery's event is gone
// from the chain (Outcome.Gone), it also retracts the delivery (replaceEvent).
func (s *Store) recordIn(ctx context.Context, tx pgx.Tx, q recordRequest) (ledger.Recorded, error) {
	b := &pgx.Batch{}
	written := queueRecord(b, q)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return ledger.Recorded{}, err
	}
	rec, err := written.result()
	if err != nil || q.outcome.Gone == nil {
		return rec, err
	}
	byAgent := make(tasksByAgent)
	err = s.replaceEvent(ctx, tx, q.claim.ID, q.claim.Job, *q.outcome.Gone, byAgent)
	rec.Next = append(rec.Next, interleaveAgents(byAgent)...)
	return rec, err
}

// Adopt records the outcome p of an earlier attempt of the claimed delivery, so that the agent is not called again. It
// undoes the claim's own attempt, which must not have called the agent. Then it completes the earlier attempt and
// changes the delivery as Record would. p.Outcome.Delay is the rest of the wait. Calling Adopt again after an error is
// harmless.
//
// Adopt returns ErrFenced in the same cases as Record. It returns ErrStale, and changes nothing, if the earlier attempt
// already has an outcome, or if it was deleted because it did not count (Outcome.Free).
func (s *Store) Adopt(ctx context.Context, c *ledger.Claim, p ledger.SpooledOutcome) (rec ledger.Recorded, err error) {
	ctx, end := s.StartCall(ctx, &err, "adopt what attempt %d of delivery %s led to", p.Attempt, c.ID)
	defer end()
	if err := p.Outcome.CheckStatus(); err != nil {
		return rec, err
	}
	o := p.Outcome
	took := int32(min(max(p.At.Sub(p.StartedAt).Milliseconds(), 0), math.MaxInt32))
	fenced := false
	// The statements need several round trips, because the later ones depend on the result of adopt.sql. Adopt is rare.
	err = pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
		if err := s.lockAgentsOf(ctx, tx, c, o); err != nil {
			return err
		}
		var ours, open bool
		row := tx.QueryRow(ctx, statements.Text("adopt"), c.ID, c.No, p.Attempt, p.StartedAt)
		if err := row.Scan(&ours, &open); err != nil {
			return err
		}
		if ours && !open {
			return ledger.ErrStale
		}
		// The row of a free attempt is deleted, but only if it is the last one before c's: the others keep their
		// numbers.
		o.Free = o.Free && p.Attempt == c.Attempt-1
		rec, err = s.recordIn(ctx, tx, recordRequest{claim: p.EarlierClaim(c), outcome: o, attempt: p.Attempt,
			startedAt: p.StartedAt, tookMs: &took})
		if fenced = errors.Is(err, ledger.ErrFenced); fenced {
			return nil // commit: for Delivered, the attempt's row is completed although the claim is lost
		}
		return err
	})
	if fenced {
		return ledger.Recorded{}, ledger.ErrFenced
	}
	return rec, err
}

// recordRequest is the request to record the outcome of an attempt: of the claim's own attempt, or of an earlier one
// (Adopt).
type recordRequest struct {
	claim     *ledger.Claim
	outcome   ledger.Outcome
	attempt   int // number of the attempt
	startedAt time.Time
	tookMs    *int32 // duration of the attempt; nil: it ends now
}

func (q recordRequest) agentName() erc8004.Agent { return q.claim.Agent() }
func (q recordRequest) deliveryID() uuid.UUID    { return q.claim.ID }
func (q recordRequest) claimNo() int64           { return q.claim.No }

// newRecordRequest returns a request to record the outcome of the claim's own attempt.
func newRecordRequest(c *ledger.Claim, o ledger.Outcome) recordRequest {
	return recordRequest{claim: c, outcome: o, attempt: c.Attempt, startedAt: c.StartedAt}
}

// isPlain reports whether recordGroup may record the outcome: the outcome needs record.sql and dispatch.sql only, and
// does not raise the agent's epoch. The end of a delivery whose event was not found is not plain: its row must be
// locked first (lock_delivery.sql), because a job that arrives may lock another agent than the delivery's.
func (q recordRequest) isPlain() bool {
	return !q.outcome.MayBeMended() && !q.outcome.SkipDispatch && len(q.outcome.Refuted) == 0 && !q.outcome.Moved &&
		!(q.outcome.Undecided && q.outcome.Status.Final())
}

// recordGroup records plain outcomes (isPlain) of several attempts and dispatches their agents' next deliveries, in one
// round trip and one commit. A request whose outcome record.sql did not record gets no answer. The coalescer then calls
// recordAlone for it. An agent's next tasks are distributed evenly among the callers that recorded its deliveries.
func (s *Store) recordGroup(ctx context.Context, group []recordRequest) ([]coalescer.Result[ledger.Recorded], error) {
	members := sortMembers(group)
	sorted := column(members, func(i int) recordRequest { return group[i] })
	results := make([]coalescer.Result[ledger.Recorded], len(group))
	callers := make(map[erc8004.Agent][]int, len(members))
	b := &pgx.Batch{}
	chains, registries, ids := SplitAgents(column(sorted, recordRequest.agentName))
	b.Queue(statements.Text("lock_agents"), chains, registries, ids)
	queueOutcomes(b, sorted, recordArgs(sorted, false), func(nr int, rec ledger.Recorded) {
		i := members[nr-1]
		results[i] = coalescer.Result[ledger.Recorded]{Answer: rec, Answered: true}
		callers[group[i].agentName()] = append(callers[group[i].agentName()], i)
	})
	queueDispatch(b, sorted, func(t ledger.Task, a erc8004.Agent) error {
		next := callers[a]
		if len(next) == 0 {
			return errors.New("an agent was given tasks of which nothing was recorded")
		}
		rec := &results[next[0]].Answer
		rec.Next = append(rec.Next, t)
		callers[a] = append(next[1:], next[0])
		return nil
	})
	return results, s.Conns.SendBatch(ctx, b).Close()
}

// sortMembers returns the indexes of group, sorted by delivery id. record.sql applies the outcomes of one agent in that
// order.
func sortMembers(group []recordRequest) []int {
	members := make([]int, len(group))
	for i := range group {
		members[i] = i
	}
	slices.SortFunc(members, func(a, b int) int {
		x, y := group[a].claim.ID, group[b].claim.ID
		return cmp.Or(bytes.Compare(x[:], y[:]), cmp.Compare(a, b))
	})
	return members
}

// queueOutcomes queues record.sql, with the arguments args, for the outcomes of group. It calls add for each recorded
// one, with its number in the group (from 1).
func queueOutcomes(b *pgx.Batch, group []recordRequest, args pgx.NamedArgs, add func(nr int, rec ledger.Recorded)) {
	queueNamed(b, statements.Named("record"), args).Query(func(rows pgx.Rows) error {
		var nr, n int
		var next *time.Time
		var accepted, now time.Time
		var bulk, again bool
		_, err := pgx.ForEachRow(rows, []any{&nr, &n, &next, &accepted, &now, &bulk, &again}, func() error {
			q, rec := group[nr-1], ledger.Recorded{Age: now.Sub(accepted), Rechecked: again}
			if next != nil {
				rec.NextAttemptAt = *next
				if q.outcome.Task {
					rec.Task = &ledger.Task{ID: q.claim.ID, N: n, Kind: cmp.Or(q.claim.Kind, string(q.claim.Job.Kind)),
						Attempts: max(q.attempt, 1), Bulk: bulk, At: *next}
				}
			}
			add(nr, rec)
			return nil
		})
		return err
	})
}

// queueDispatch queues dispatch.sql for the agents of the claims whose outcomes the same batch records. It calls add
// for each dispatched task.
func queueDispatch(b *pgx.Batch, group []recordRequest, add func(ledger.Task, erc8004.Agent) error) {
	chains, registries, agents := SplitAgents(column(group, recordRequest.agentName))
	args := dispatchArgs(chains, registries, agents, column(group, recordRequest.deliveryID),
		column(group, recordRequest.claimNo))
	queueNamed(b, statements.Named("dispatch"), args).Query(func(rows pgx.Rows) error {
		_, err := readDispatched(rows, add)
		return err
	})
}

// written has the results of the statements of queueRecord.
type written struct {
	ledger.Recorded
	recorded bool          // the claim was valid
	ended    []ledger.Task // former tasks of held deliveries that were released
}

// queueRecord queues in b the statements that record q and dispatch the agent's next deliveries. The statement that
// locks the agent must precede them.
func queueRecord(b *pgx.Batch, q recordRequest) *written {
	w := &written{}
	c, o, a := q.claim, q.outcome, q.agentName()
	group := []recordRequest{q}
	args := recordArgs(group, true)
	b.Queue(statements.Text("lock_delivery"), c.ID)
	queueOutcomes(b, group, args, func(_ int, rec ledger.Recorded) { w.Recorded, w.recorded = rec, true })
	if o.Status == outcome.Delivered {
		queueNamed(b, statements.Named("complete"), args)
	}
	if o.MayBeMended() {
		since := c.Epoch // storing a credential has raised it
		if o.Reason == outcome.AgentDisabled {
			since = anyEpoch
		}
		b.Queue(statements.Text("release_held"), a.ChainID, a.Registry, a.ID, maxMove, []outcome.Reason{o.Reason},
			since, c.ID, c.No).Query(func(rows pgx.Rows) (err error) {
			w.ended, err = pgx.CollectRows(rows, scanEnded)
			return err
		})
	}
	if len(o.Refuted) > 0 {
		b.Queue(`UPDATE herald.hints SET refuted = true WHERE delivery_id = $1 AND rank = ANY($2)`, c.ID, o.Refuted)
	}
	if !o.SkipDispatch {
		queueDispatch(b, group, func(t ledger.Task, _ erc8004.Agent) error { w.Next = append(w.Next, t); return nil })
	}
	return w
}

// result is called after the commit, or in a transaction after the batch. If the claim is lost, it returns ErrFenced;
// a late success may have changed rows nevertheless.
func (w *written) result() (ledger.Recorded, error) {
	w.Next = append(w.Next, w.ended...)
	if !w.recorded {
		return w.Recorded, ledger.ErrFenced
	}
	return w.Recorded, nil
}
