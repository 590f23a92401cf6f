package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// holder is an existing delivery, for the answer to a job that arrives with the same key.
type holder struct {
	id       uuid.UUID
	status   outcome.Status
	reason   outcome.Reason
	raw      []byte        // the stored job; nil: retention deleted it, or the job was Refused
	sealed   []byte        // the encrypted headers of the job's endpoint
	maybe    bool          // the agent was called, or an attempt without a recorded outcome may have called it
	bound    bool          // the stored job was read from the chain
	verified bool          // workers check the event before the call
	source   ledger.Source // the sender of the job whose action (tool, endpoint, arguments) is used
	// retracted means that a retraction of this feedback and block exists. It may be of another delivery.
	retracted bool
	// gone means that a reorg removed the event, and the chain follower has read up to the newest block without finding
	// it again.
	gone bool
}

// isNotFound reports whether the delivery was rejected (event_not_found), because a check did not find its event on the
// chain.
func (h holder) isNotFound() bool {
	return h.status == outcome.Rejected && h.reason == outcome.EventNotFound
}

// mayReopen reports whether the delivery ended because its event was missing: a check did not find the event, or a
// reorg removed it. The delivery can then be queued again (reopenDelivery).
func (h holder) mayReopen() bool {
	return h.isNotFound() || h.status == outcome.Cancelled && h.reason == outcome.Reorg
}

// isFiltered reports whether a filter of the agent's policy ended the delivery.
func (h holder) isFiltered() bool { return h.status == outcome.Skipped && h.reason == outcome.Filtered }

// answerKnownKeys sets the answers that insertNew left undecided, because their keys have deliveries. An answer becomes
// Known or Conflict. It becomes Accepted if the delivery was queued again, or if the key was given to a new delivery
// (displaceHolder). New tasks are added to byAgent. It returns errConcurrentUpdate if a key no longer has a delivery.
func (s *Store) answerKnownKeys(ctx context.Context, tx pgx.Tx, in []arrival, out []ledger.Acceptance,
	byAgent tasksByAgent) error {
	var keys []string
	for i, a := range in {
		if out[i].Verdict == undecided {
			keys = append(keys, a.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	holders, err := s.readHolders(ctx, tx, hasKey, keys)
	if err != nil {
		return err
	}
	for i, a := range in {
		if out[i].Verdict != undecided {
			continue
		}
		h, ok := holders[a.key]
		if !ok { // an earlier arrival of this batch changed the delivery
			changed, err := s.readHolders(ctx, tx, hasKey, []string{a.key})
			if err != nil {
				return err
			}
			h, ok = changed[a.key]
		}
		if !ok {
			return fmt.Errorf("look up %s: %w", a.key, errConcurrentUpdate)
		}
		if out[i], err = s.answerKnownKey(ctx, tx, a, h, byAgent); err != nil {
			return err
		}
		switch { // read again the deliveries that may have changed
		case out[i].Verdict == ledger.Accepted:
			clear(holders) // the revocation of a feedback that is queued again is queued too
		case a.read:
			delete(holders, a.key)
		}
	}
	return nil
}

// Conditions of readHolders. h is the delivery's row of herald.history.
const (
	hasID  = "h.id = $1"
	hasKey = "herald.key_hash(h.key) = ANY(ARRAY(SELECT herald.key_hash(k) FROM unnest($1::text[]) k))"
)

// readHolders reads the deliveries that a condition selects, whose $1 is arg, and returns them by key.
func (s *Store) readHolders(ctx context.Context, tx pgx.Tx, condition string, arg any) (map[string]holder, error) {
	rows, _ := tx.Query(ctx, statements.Text("known")+" WHERE "+condition, arg)
	found := make(map[string]holder)
	var key string
	var h holder
	_, err := pgx.ForEachRow(rows, []any{&key, &h.id, &h.status, &h.reason, &h.raw, &h.sealed, &h.maybe,
		&h.bound, &h.verified, &h.source.Name, &h.source.Trust, &h.retracted, &h.gone}, func() error {
		found[key] = h
		h.raw, h.sealed = nil, nil // so that the next row is scanned into new memory
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up known keys: %w", err)
	}
	return found, nil
}

// answerKnownKey answers an arrival whose key has the delivery h. The first case that applies decides:
//   - The arrival is Refused: nothing changes.
//   - The stored job cannot be parsed. reopenDelivery replaces it under two conditions; otherwise nothing changes.
//     First: the delivery ended because its job was invalid or its event was missing (mayReopen). Second: the agent
//     cannot have been called, or the arrival was read from the chain.
//   - The arrival was read from the chain: answerRead.
//   - Workers do not check the delivery's event: answerUnverified.
//   - The delivery is a retraction, whose job this package made: nothing changes.
//   - Otherwise: answerHint.
func (s *Store) answerKnownKey(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	byAgent tasksByAgent) (ledger.Acceptance, error) {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status}
	if a.Refused != "" {
		return out, nil
	}
	var known, brought job.Job
	// a.raw, not a.Job: known was changed by storable.Repair before it was stored, so brought must be changed too.
	if err := json.Unmarshal(a.raw, &brought); err != nil {
		return out, fmt.Errorf("read back the job of %s: %w", a.key, err)
	}
	isReadable := h.raw != nil && json.Unmarshal(h.raw, &known) == nil
	isInvalid := h.status == outcome.Rejected && h.reason == outcome.InvalidJob
	switch {
	case !isReadable && (h.mayReopen() || isInvalid) && (!h.maybe || a.read):
		return s.reopenDelivery(ctx, tx, a, h)
	case !isReadable: // change nothing: a newer version of Herald may be able to parse the stored job
		return out, nil
	case a.read:
		return s.answerRead(ctx, tx, a, h, brought, known, byAgent)
	case !h.verified:
		return s.answerUnverified(ctx, tx, a, h, brought, known)
	case known.Retracts != "": // a retraction
		return out, nil
	}
	return s.answerHint(ctx, tx, a, h, brought, known)
}

// answerUnverified answers an arriving job (brought) whose key has the delivery h, if workers do not check h's event.
// known is h's stored job. If h ended because its event was missing (mayReopen), and its agent cannot have been called,
// h is queued again with the arriving job. Otherwise h keeps its job, and the answer is Conflict if the two jobs differ
// in the event's content, the action or the headers.
func (s *Store) answerUnverified(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	brought, known job.Job) (ledger.Acceptance, error) {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status}
	field, differs := brought.Conflict(known)
	switch {
	case h.mayReopen() && !h.maybe:
		return s.reopenDelivery(ctx, tx, a, h)
	case differs:
		out.Verdict, out.Field, out.Stored = ledger.Conflict, field, known.ContentValue(field)
	case brought.ActionSum() != known.ActionSum() || !ledger.SameHeaders(a.SealedHeaders, h.sealed, a.SameHeaders):
		out.Verdict, out.Field = ledger.Conflict, "action"
	}
	return out, nil
}

// answerHint answers a job that a sender enqueued (brought), if workers check the event of h, the delivery with the
// same key. known is h's stored job. A hint is a job that may name the right position of the event (Hint). The first
// case that applies decides:
//   - h ended because its event was missing (mayReopen), and its agent cannot have been called: the new job becomes a
//     hint, and h is queued again. Exception: if h was rejected (event_not_found) and AddHint rejects the hint, h stays
//     rejected.
//   - h has ended for another reason, or its agent was or may have been called. If h's job was read from the chain
//     (bound), a worker reads h's event from the chain again (Review) in two cases. First: the new job names another
//     event; it becomes a hint. Second: h's agent may know a retraction of h, or h ended because its event was missing,
//     so the event may have returned to the chain. Otherwise nothing changes.
//   - The new job differs from the stored one in the event or its position, or its sender has a higher trust than h's:
//     the new job becomes a hint.
//
// In each case, AddHint may reject the hint. The answer is Accepted if h was queued again. Otherwise it is Conflict if
// a hint of a sender with the same Trust has another action than the new job, or other headers (HasOtherAction). In all
// other cases it is Known.
func (s *Store) answerHint(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	brought, known job.Job) (ledger.Acceptance, error) {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.EventSum() != known.EventSum() || a.Source.Trust > h.source.Trust {
		const lock = `SELECT FROM herald.history WHERE herald.key_hash(key) = herald.key_hash($1) FOR UPDATE`
		if _, err := tx.Exec(ctx, lock, a.key); err != nil {
			return out, fmt.Errorf("lock %s: %w", a.key, err)
		}
		locked, err := s.readHolders(ctx, tx, hasKey, []string{a.key})
		if err != nil {
			return out, err
		}
		if found := locked[a.key]; found.id != h.id || string(found.raw) != string(h.raw) {
			return out, fmt.Errorf("lock %s: %w", a.key, errConcurrentUpdate)
		}
		h = locked[a.key]
	}
	if h.bound {
		out.Differs = brought.Differences(known)
	}
	hints, _, err := s.listHints(ctx, tx, h, known)
	if err != nil {
		return out, err
	}
	if ledger.HasOtherAction(hints, brought, a.SealedHeaders, a.Source.Trust, a.SameHeaders) {
		out.Verdict, out.Field, out.Differs = ledger.Conflict, "action", nil
	}
	isElsewhere := brought.EventSum() != known.EventSum()
	switch {
	case h.mayReopen() && !h.maybe:
		added, err := s.addHint(ctx, tx, a, h, brought, known, false)
		if err != nil || !added && h.isNotFound() {
			return out, err
		}
		return s.reopenDelivery(ctx, tx, a, h)
	case h.status.Final() || h.maybe:
		switch {
		case !h.bound:
		case brought.NamesEvent(known):
			err = s.reviewReturn(ctx, tx, h, known)
		default:
			_, err = s.addHint(ctx, tx, a, h, brought, known, true)
		}
	case isElsewhere || a.Source.Trust > h.source.Trust:
		_, err = s.addHint(ctx, tx, a, h, brought, known, false)
	}
	return out, err
}

// reopenDelivery queues the ended delivery h again with the arrival's job, and returns Accepted. h's event has returned
// to the chain, or may be at the position that the new job names. If h is a feedback whose revocation was skipped
// because the feedback was never delivered, the revocation is queued again too. The callers ensure that h's agent
// cannot have been called or that the new job was read from the chain. reopenDelivery returns errConcurrentUpdate if
// another transaction has changed h.
func (s *Store) reopenDelivery(ctx context.Context, tx pgx.Tx, a arrival, h holder) (ledger.Acceptance, error) {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status}
	args := a.eventArgs(h.id)
	args["key"], args["read"] = a.key, a.read
	err := tx.QueryRow(ctx, statements.Text("reopen"), statements.Named("reopen").Args(args)...).Scan(&out.ID)
	if err != nil { // no row: another transaction changed h, so retryTransaction must retry
		return out, fmt.Errorf("queue %s anew: %w", a.key, postgres.NoRows(err, errConcurrentUpdate))
	}
	if _, err := tx.Exec(ctx, statements.Text("revive_revocations"), []uuid.UUID{h.id}); err != nil {
		return out, fmt.Errorf("queue the revocation of %s anew: %w", a.key, err)
	}
	out.Verdict, out.Status = ledger.Accepted, outcome.Queued
	return out, nil
}

// eventArgs returns the arguments that reopen.sql and read_event.sql have in common. Both replace the job of the
// delivery with this id by the arrival's job.
func (a arrival) eventArgs(id uuid.UUID) pgx.NamedArgs {
	return pgx.NamedArgs{"delivery_id": id, "job": a.raw, "sealed_headers": a.SealedHeaders, "source": a.Source.Name,
		"trust": int(a.Source.Trust), "registry": a.agent.Registry, "agent_id": a.agent.ID,
		"order_key": a.Job.OrderKey(), "order_seq": fmt.Sprint(a.Job.OrderSeq())}
}

// displaceHolder gives the key of the delivery h, whose event is not on the chain, to a new delivery of the arriving
// job, with the action that a sender chose for the event (adoptAction). It returns the answer for the new delivery. h
// gets another key, and is cancelled (reorg) if it is queued, waiting or held. If h's agent was or may have been called
// with a feedback, a retraction informs that agent (retractDisplaced). New tasks are added to byAgent.
func (s *Store) displaceHolder(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	byAgent tasksByAgent) (out ledger.Acceptance, err error) {
	if err := s.adoptAction(ctx, tx, &a, h); err != nil {
		return out, err
	}
	if a.id, err = freeKey(ctx, tx, h.id, a.key); err != nil {
		return out, err
	}
	if h.maybe {
		if err := s.retractDisplaced(ctx, tx, h, byAgent); err != nil {
			return out, err
		}
	}
	return s.insertOne(ctx, tx, a, byAgent)
}

// adoptAction gives the arrival a, which was read from the chain, the action that a sender chose for its event. Jobs of
// this event that arrived before became hints of the delivery h.
func (s *Store) adoptAction(ctx context.Context, tx pgx.Tx, a *arrival, h holder) error {
	var known job.Job
	_ = json.Unmarshal(h.raw, &known) // if retention deleted the job, it belongs to no agent
	hints, _, err := s.listHints(ctx, tx, h, known)
	if err != nil {
		return fmt.Errorf("read the hints of %s: %w", a.key, err)
	}
	a.Intake = ledger.AdoptAction(a.Intake, hints)
	a.raw, err = encodeJob(a.Job)
	return err
}

// freeKey gives another key to the delivery with this id (displace.sql), and cancels the delivery (reorg) if it is
// queued, waiting or held. It returns the id for a new delivery with the freed key.
func freeKey(ctx context.Context, tx pgx.Tx, id uuid.UUID, key string) (uuid.UUID, error) {
	var moved string
	b := &pgx.Batch{}
	queueNamed(b, statements.Named("end"), endArgs([]uuid.UUID{id}, false, outcome.Cancelled, outcome.Reorg))
	b.Queue(statements.Text("displace"), id, key).QueryRow(func(row pgx.Row) error { return row.Scan(&moved) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return uuid.Nil, fmt.Errorf("free the key %s: %w", key, postgres.NoRows(err, errConcurrentUpdate))
	}
	return job.IDOf(moved), nil
}

// insertOne inserts the delivery of the arrival a, and returns its answer. It returns errConcurrentUpdate if another
// delivery has the key. A new task is added to byAgent.
func (s *Store) insertOne(ctx context.Context, tx pgx.Tx, a arrival,
	byAgent tasksByAgent) (out ledger.Acceptance, err error) {
	made, err := s.insertDeliveries(ctx, tx, []arrival{a})
	if err != nil {
		return out, fmt.Errorf("insert %s: %w", a.key, err)
	}
	row, isNew := made[a.id]
	if !isNew {
		return out, fmt.Errorf("insert %s: %w", a.key, errConcurrentUpdate)
	}
	return a.answerInserted(row, byAgent), nil
}
