package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A reorg replaces blocks of a chain. Deliveries change in the transaction that accepts the jobs of the new blocks
// (AdvanceCursors). The remembered events of replaced blocks (herald.chain_events) become orphaned. An event that is
// read again gets its new position. When the chain has been read up to its newest block, the remaining orphaned events
// are gone, and their deliveries end (orphans.sql). If the agent of such a delivery was or may have been called with a
// feedback, it gets a retraction: a delivery that informs the agent. See docs/design/chain.md.

// acceptRead accepts the jobs of the blocks that the cursors read (rows), and remembers the blocks of their events.
// orphans reports whether the cursors' contracts have orphaned events. If they have, and the chain was read up to its
// newest block (read.AtHead), acceptRead ends the deliveries whose orphaned events are not among the rows.
func (s *Store) acceptRead(ctx context.Context, tx pgx.Tx, g cursorGroup, rows []arrival, read Advance,
	orphans bool) (done Advanced, err error) {
	agents := arrivalAgents(rows)
	var gone foundRows // deliveries with orphaned events; endOrphans skips those whose events are among rows
	if orphans && read.AtHead {
		gone, err = readFound(ctx, tx, statements.Text("list_orphans"), g.chainID, g.names, g.backfill)
		if err != nil {
			return done, fmt.Errorf("list the deliveries whose events a reorg removed: %w", err)
		}
		agents = distinctAgents(append(agents, gone.agents...))
	}
	if err := s.LockAgents(ctx, tx, agents); err != nil {
		return done, err
	}
	if err := gone.lockRows(ctx, tx); err != nil {
		return done, err
	}
	if done.Answers, done.Tasks, err = s.acceptLocked(ctx, tx, rows); err != nil {
		return done, err
	}
	settled := read.Settled
	if orphans { // remember the events of settled blocks too: a remembered event is no longer orphaned
		settled = 0
	}
	if err := s.rememberEvents(ctx, tx, g, rows, done.Answers, settled); err != nil {
		return done, err
	}
	if len(gone.ids) == 0 {
		return done, nil
	}
	tasks, err := s.endOrphans(ctx, tx, gone, &done)
	done.Tasks = append(done.Tasks, tasks...)
	return done, err
}

// rememberEvents stores the block of each arrival's event, so that a reorg of the block finds the delivery (out[i].ID).
// It skips events in blocks up to the number settled, which no reorg is expected to replace. It also skips refused
// jobs, agent updates, and jobs that conflict with the delivery's event. A job that conflicts only with the delivery's
// action has the delivery's event, so rememberEvents stores its block.
func (s *Store) rememberEvents(ctx context.Context, tx pgx.Tx, g cursorGroup, in []arrival, out []ledger.Acceptance,
	settled uint64) error {
	events := make(map[uuid.UUID]arrival)
	for i, a := range in {
		isItsEvent := out[i].Verdict != ledger.Refreshed &&
			(out[i].Verdict != ledger.Conflict || out[i].Field == "action")
		if a.Refused == "" && isItsEvent && a.Job.BlockNumber > settled {
			events[out[i].ID] = a
		}
	}
	if len(events) == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(events))
	contracts, blocks := make([]string, len(ids)), make([]uint64, len(ids))
	for i, id := range ids {
		contracts[i], blocks[i] = emitterOf(events[id].Job), events[id].Job.BlockNumber
	}
	_, err := tx.Exec(ctx, statements.Text("remember_events"), g.chainID, g.backfill, ids, contracts, blocks)
	if err != nil {
		return fmt.Errorf("note the blocks of events (%d): %w", len(ids), err)
	}
	return nil
}

// endOrphans ends the found deliveries whose events are still orphaned:
//   - It cancels (reorg) those that are queued, waiting, held, filtered, or rejected because their event was not found.
//     The events of running deliveries stay orphaned until these end.
//   - It appends the cancelled deliveries, and those that had ended before, to done.Vanished.
//   - It retracts each feedback among these whose agent was or may have been called.
//   - It dispatches from the backlogs of their agents, which tx has locked. It returns all new tasks.
func (s *Store) endOrphans(ctx context.Context, tx pgx.Tx, found foundRows,
	done *Advanced) (tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "end deliveries whose event a reorg removed")
	var called []job.Job // the job of each element added to done.Vanished; zero: the element is not retracted
	var v ledger.Vanished
	var raw []byte
	rows, _ := tx.Query(ctx, statements.Text("orphans"), found.ids)
	_, err = pgx.ForEachRow(rows, []any{&v.ID, &v.Key, &v.Cancelled, &v.Called, &raw}, func() error {
		var known job.Job
		// A job that retention deleted, or that only a newer version can parse, cannot be retracted.
		if !v.Called || raw == nil || json.Unmarshal(raw, &known) != nil || known.Kind != job.KindNewFeedback {
			known = job.Job{}
		}
		called = append(called, known)
		done.Vanished = append(done.Vanished, v)
		raw = nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	byAgent := make(tasksByAgent)
	for i, known := range called {
		if known.Kind == "" {
			continue
		}
		v := &done.Vanished[len(done.Vanished)-len(called)+i]
		if v.Retraction, err = s.retractDelivery(ctx, tx, v.ID, known, byAgent); err != nil {
			return nil, err
		}
	}
	tasks = interleaveAgents(byAgent)
	more, err := s.dispatchAgents(ctx, tx, found.agents)
	return append(tasks, more...), err
}

// maxRetractions limits the retractions of one feedback in one block, except withdrawn ones. A block can disappear
// several times. The keys of the retractions end in `@<blockHash>`, `@<blockHash>.2`, `.3`, ….
const maxRetractions = 20

// retractionKeys returns the keys that the retractions of a feedback can have. known is the feedback's job.
func retractionKeys(known job.Job) []string {
	base := known.Retraction(uuid.Nil).Key()
	keys := []string{base}
	for n := 2; n <= maxRetractions; n++ {
		keys = append(keys, fmt.Sprintf("%s.%d", base, n))
	}
	return keys
}

// readRetractions returns the existing retractions of a feedback by key, also those of other deliveries. known is the
// feedback's job.
func (s *Store) readRetractions(ctx context.Context, tx pgx.Tx, known job.Job) (map[string]holder, error) {
	return s.readHolders(ctx, tx, hasKey, retractionKeys(known))
}

// retracts returns the id of the delivery that the retraction h retracts, as text; "": unknown.
func (h holder) retracts() string {
	var j job.Job
	_ = json.Unmarshal(h.raw, &j) // retention may have deleted the job
	return j.Retracts
}

// retractDelivery inserts a retraction of the delivery with this id, whose agent was or may have been called. known is
// the delivery's job, a feedback. It adds the retraction's task to byAgent and returns the retraction's id. If the
// delivery already has a retraction that was neither withdrawn (mined_again) nor refused (event_not_found, if a sender
// enqueued it), it only returns the id of that one. A withdrawn or refused one gives its key to the new one. Without a
// free key, retractDelivery returns uuid.Nil: an error would stop the chain follower for good.
//
// After the reorg, another feedback may have the index of the removed one. The retraction delays it, as an earlier
// feedback would. The delay ends when the retraction has ended, and at the latest 60 s after its first attempt
// (delays_until).
func (s *Store) retractDelivery(ctx context.Context, tx pgx.Tx, id uuid.UUID, known job.Job,
	byAgent tasksByAgent) (uuid.UUID, error) {
	there, err := s.readRetractions(ctx, tx, known)
	if err != nil {
		return uuid.Nil, err
	}
	a, err := newArrival(ledger.Intake{Job: known.Retraction(id), Source: ledger.Source{Name: ledger.SourceChain}})
	if err != nil {
		return uuid.Nil, err
	}
	a.read = true
	for _, key := range retractionKeys(known) {
		a.key, a.id = key, job.IDOf(key)
		if r, isTaken := there[key]; isTaken {
			if r.retracts() != id.String() {
				continue
			}
			if r.reason != outcome.MinedAgain && r.reason != outcome.EventNotFound {
				return r.id, nil
			}
			if a.id, err = freeKey(ctx, tx, r.id, key); err != nil {
				return uuid.Nil, err
			}
		}
		out, err := s.insertOne(ctx, tx, a, byAgent)
		return out.ID, err
	}
	return uuid.Nil, nil
}

// retractDisplaced retracts the delivery h, whose event is no longer on the chain and whose agent was or may have been
// called. It does nothing if h's stored job was deleted, cannot be parsed, or is not a NewFeedback.
func (s *Store) retractDisplaced(ctx context.Context, tx pgx.Tx, h holder, byAgent tasksByAgent) error {
	var known job.Job
	if h.raw == nil || json.Unmarshal(h.raw, &known) != nil || known.Kind != job.KindNewFeedback {
		return nil
	}
	_, err := s.retractDelivery(ctx, tx, h.id, known, byAgent)
	return err
}

// answerRead answers an arrival whose event was read from the chain, and whose key has the delivery h. brought is the
// arrival's job, and known is h's stored job.
//
// If both jobs name the same event (Job.SameEvent), h gets the event's present position. If h ended because its event
// was missing (mayReopen), h is also queued again. So is a filtered h, if the default policy does not skip the event at
// its new position. If the chain follower had found the event gone, acceptReturned decides instead. Otherwise, if h's
// agent may know a retraction of h (wasRetracted), the event gets a new delivery (displaceHolder). Otherwise, if h was
// neither checked nor called, and names another identity registry, the last case below applies.
//
// If they name different events, the first case that applies decides:
//   - h is bound or verified, and its agent was or may have been called: the new event gets a new delivery with the key
//     (displaceHolder).
//   - h is bound or verified, and ended for another reason than a missing event (mayReopen is false): the same.
//   - h ended because its event was missing (mayReopen), and its agent cannot have been called: h is queued again with
//     the new event.
//   - h is neither bound nor verified: h keeps its job. The answer is Conflict if the content of the events differs.
//   - Otherwise the new event replaces h's job, and the old job becomes h's first hint.
func (s *Store) answerRead(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	byAgent tasksByAgent) (ledger.Acceptance, error) {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.SameEvent(known) {
		informed, _, err := s.wasRetracted(ctx, tx, h, known)
		switch {
		case err != nil:
			return out, err
		case h.gone && a.followed:
			return s.acceptReturned(ctx, tx, a, h, brought, known, byAgent)
		case informed:
			return s.displaceHolder(ctx, tx, a, h, byAgent)
		case h.mayReopen(), h.isFiltered() && a.Filtered == "" && brought.EventSum() != known.EventSum():
			return s.reopenDelivery(ctx, tx, a, h)
		case h.bound, !h.verified, h.maybe, h.status.Final(), brought.IdentityRegistry == known.IdentityRegistry:
			return s.moveEvent(ctx, tx, a, h, brought, known, out)
		}
	}
	field, _ := brought.Conflict(known)
	switch {
	case (h.maybe || h.status.Final() && !h.mayReopen()) && (h.bound || h.verified):
		return s.displaceHolder(ctx, tx, a, h, byAgent)
	case h.mayReopen() && !h.maybe:
		return s.reopenDelivery(ctx, tx, a, h)
	case !h.bound && !h.verified:
		if field != "" {
			out.Verdict, out.Field, out.Stored = ledger.Conflict, field, known.ContentValue(field)
		}
		return out, nil
	}
	if err := s.keepFirstHint(ctx, tx, h, known); err != nil {
		return out, err
	}
	return out, s.readEvent(ctx, tx, a, h)
}

// keepFirstHint stores the present job of the delivery h (known) as h's first hint, if h has no stored hint. Afterwards
// the caller replaces the job by the event that was read from the chain. The hint preserves the action that the sender
// of the old job chose.
func (s *Store) keepFirstHint(ctx context.Context, tx pgx.Tx, h holder, known job.Job) error {
	hints, stored, err := s.listHints(ctx, tx, h, known)
	if err != nil || stored > 0 || len(hints) == 0 {
		return err
	}
	b := &pgx.Batch{}
	queueHint(b, h.id, hints[0], h.raw, false)
	return tx.SendBatch(ctx, b).Close()
}

// readEvent replaces the job of the delivery h by the arrival's job, which was read from the chain. If h waits for the
// chain or for another delivery, readEvent queues h again at once. A response that waited for other responses would
// otherwise be released by its feedback only, and a delivery that gets another agent by nothing.
func (s *Store) readEvent(ctx context.Context, tx pgx.Tx, a arrival, h holder) error {
	b := &pgx.Batch{}
	// If h's agent is another one, tx has not locked it, and h may have ended since tx read it.
	const lock = `SELECT FROM herald.history WHERE id = $1 AND (finished_at IS NOT NULL) = $2 FOR UPDATE`
	b.Queue(lock, h.id, h.status.Final()).QueryRow(func(row pgx.Row) error {
		return postgres.NoRows(row.Scan(), errConcurrentUpdate)
	})
	// tx does not lock out claims. A worker that has claimed a bound delivery since calls the agent with the old event.
	// If it has bound the delivery since, under another agent's lock, the delivery may have got the event's agent.
	const lockOpen = `SELECT FROM herald.work WHERE id = $1 AND (status = 'running') = $2 AND bound = $3 FOR UPDATE`
	if !h.status.Final() {
		b.Queue(lockOpen, h.id, h.status == outcome.Running, h.bound).QueryRow(func(row pgx.Row) error {
			return postgres.NoRows(row.Scan(), errConcurrentUpdate)
		})
	}
	queueNamed(b, statements.Named("read_event"), a.eventArgs(h.id))
	b.Queue(statements.Text("wake"), h.id, append(slices.Clone(chainReasons), outcome.BehindEarlier))
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("give %s the event of block %d: %w", a.key, a.Job.BlockNumber, err)
	}
	return nil
}

// moveEvent gives the delivery h the present position of its event. The job that was read from the chain (brought)
// replaces the stored job (known), except for the action, the metadata and the headers. If the positions are equal,
// nothing changes. moveEvent returns out, the answer that the caller prepared.
func (s *Store) moveEvent(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	out ledger.Acceptance) (_ ledger.Acceptance, err error) {
	if brought.EventSum() == known.EventSum() {
		return out, nil
	}
	if brought.Tag1 == "" {
		brought.Tag1 = known.Tag1 // the log of an older event form lacks the tag
	}
	brought.Action, brought.Meta, brought.IdentityRegistry = known.Action, known.Meta, known.IdentityRegistry
	a.Job, a.agent, a.SealedHeaders, a.Source = brought, ledger.AgentOf(brought), h.sealed, h.source
	if a.raw, err = encodeJob(brought); err != nil {
		return out, err
	}
	return out, s.readEvent(ctx, tx, a, h)
}

// acceptReturned answers an arrival whose event is on the chain again, after a reorg had removed the event and the
// delivery h was ended or retracted. known is h's stored job, and brought is the arrival's job. acceptReturned ends the
// open retractions of h with which the agent was not called. Then the first case that applies decides:
//   - The agent was or may have been called with a retraction of h: the event gets a new delivery (displaceHolder),
//     because the agent would take the old deliveryId for a repetition. An open retraction of h is still sent.
//   - h ended because its event was missing (mayReopen): h is queued again.
//   - Otherwise only the stored position of the event changes (moveEvent).
func (s *Store) acceptReturned(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	byAgent tasksByAgent) (ledger.Acceptance, error) {
	there, err := s.readRetractions(ctx, tx, known)
	if err != nil {
		return ledger.Acceptance{}, err
	}
	wasInformed := false
	for _, r := range there {
		if id := r.retracts(); id != h.id.String() && id != "" { // the retraction of another delivery
			continue
		}
		var called bool
		if err := tx.QueryRow(ctx, statements.Text("withdraw"), r.id).Scan(&called); err != nil {
			return ledger.Acceptance{}, fmt.Errorf("withdraw the retraction of %s: %w", a.key, err)
		}
		wasInformed = wasInformed || called
	}
	switch {
	case wasInformed:
		return s.displaceHolder(ctx, tx, a, h, byAgent)
	case h.mayReopen():
		return s.reopenDelivery(ctx, tx, a, h)
	}
	return s.moveEvent(ctx, tx, a, h, brought, known,
		ledger.Acceptance{Verdict: ledger.Known, ID: h.id, Key: a.key, Status: h.status})
}

// replaceEvent retracts the delivery with this id, if its agent was or may have been called. old is the job of its
// event, which is no longer on the chain. If g.Next is set and the delivery has the key of g.Next, replaceEvent also
// gives the key to a new delivery for g.Next. A delivery that lost its key (displace.sql) has another one; it runs
// again if an operator replays it. replaceEvent does nothing if the delivery has another event by now. tx has locked
// the agents of both events. New tasks are added to byAgent.
func (s *Store) replaceEvent(ctx context.Context, tx pgx.Tx, id uuid.UUID, old job.Job, g ledger.Gone,
	byAgent tasksByAgent) error {
	holders, err := s.readHolders(ctx, tx, hasID, id)
	if err != nil {
		return err
	}
	for key, h := range holders {
		var now job.Job
		if json.Unmarshal(h.raw, &now) != nil || !now.SameEvent(old) {
			return nil
		}
		if g.Next == nil || key != g.Next.Key() {
			if !h.maybe {
				return nil
			}
			return s.retractDisplaced(ctx, tx, h, byAgent)
		}
		a, err := newArrival(ledger.Intake{Job: *g.Next, Source: ledger.Source{Name: ledger.SourceChain}})
		if err != nil {
			return err
		}
		a.read = true
		_, err = s.displaceHolder(ctx, tx, a, h, byAgent)
		return err
	}
	return nil
}
