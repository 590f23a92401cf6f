package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A reorg changes deliveries in the transaction that accepts the new blocks' jobs (AdvanceCursors). The remembered
// events of replaced blocks become orphaned. Events that are read again get their new position. When the chain has been
// read up to its head, the deliveries of events that are still orphaned end (orphans.sql). If their agents were called,
// they get a retraction.

// Vanished is a delivery whose event a reorg removed from the chain, as AdvanceCursors found it.
type Vanished struct {
	ID        uuid.UUID
	Key       string
	Cancelled bool // the delivery was cancelled (reorg) by this call
	Called    bool // the agent was called, or may have been
	// Retraction is the delivery that informs the agent; zero: none, because the agent was not called or the event is
	// not a feedback.
	Retraction uuid.UUID
}

// acceptRead accepts the jobs (rows) of the blocks that the cursors g read, and remembers the blocks of their events.
// orphans reports whether events of g's contracts are orphaned. If so, and the chain was read up to its head
// (read.AtHead), acceptRead ends the deliveries of those that rows does not contain.
func (s *Store) acceptRead(ctx context.Context, tx pgx.Tx, g cursorGroup, rows []arrival, read Advance,
	orphans bool) (done Advanced, err error) {
	agents := arrivalAgents(rows)
	var gone []uuid.UUID // deliveries whose events are gone unless this reading has them
	var orphanAgents []Agent
	if orphans && read.AtHead {
		if gone, orphanAgents, err = s.listOrphans(ctx, tx, g); err != nil {
			return done, err
		}
		agents = distinctAgents(append(agents, orphanAgents...))
	}
	if err := s.lockAgents(ctx, tx, agents); err != nil {
		return done, err
	}
	if done.Answers, done.Tasks, err = s.acceptLocked(ctx, tx, rows); err != nil {
		return done, err
	}
	above := read.Settled
	if orphans { // an event that is found again must not stay orphaned, even in a settled block
		above = 0
	}
	if err := s.placeEvents(ctx, tx, g, rows, done.Answers, above); err != nil {
		return done, err
	}
	if len(gone) == 0 {
		return done, nil
	}
	tasks, err := s.endOrphans(ctx, tx, gone, orphanAgents, &done)
	done.Tasks = append(done.Tasks, tasks...)
	return done, err
}

// listOrphans returns the ids of the deliveries whose events the cursors g remember as orphaned, and the distinct
// agents of these deliveries, sorted. The slices are not parallel.
func (s *Store) listOrphans(ctx context.Context, tx pgx.Tx, g cursorGroup) (ids []uuid.UUID, agents []Agent, _ error) {
	var id uuid.UUID
	var a Agent
	rows, _ := tx.Query(ctx, statement("list_orphans"), g.chainID, g.names, g.backfill)
	_, err := pgx.ForEachRow(rows, []any{&id, &a.ChainID, &a.Registry, &a.ID}, func() error {
		ids, agents = append(ids, id), append(agents, a)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the deliveries whose events a reorg removed: %w", err)
	}
	return ids, distinctAgents(agents), nil
}

// placeEvents stores in which block the event of each arrival is, so that a later reorg of that block finds its
// delivery (out[i].ID). It skips events in block above and earlier ones, and events that are not those of the delivery:
// refused jobs, agent updates, and conflicts other than about the action.
func (s *Store) placeEvents(ctx context.Context, tx pgx.Tx, g cursorGroup, in []arrival, out []Acceptance,
	above uint64) error {
	events := make(map[uuid.UUID]arrival)
	for i, a := range in {
		isIts := out[i].Verdict != Refreshed && (out[i].Verdict != Conflict || out[i].Field == "action")
		if a.Refused == "" && isIts && a.Job.BlockNumber > above {
			events[out[i].ID] = a
		}
	}
	if len(events) == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(events))
	contracts, blocks := make([]string, len(ids)), make([]uint64, len(ids))
	for i, id := range ids {
		contracts[i], blocks[i] = events[id].readBy.Contracts, events[id].Job.BlockNumber
	}
	_, err := tx.Exec(ctx, statement("place_events"), g.chainID, g.backfill, ids, contracts, blocks)
	if err != nil {
		return fmt.Errorf("note the blocks of %d events: %w", len(ids), err)
	}
	return nil
}

// endOrphans ends those of the deliveries ids whose events are still orphaned, retracts each feedback whose agent was
// or may have been called, and appends each ended one to done.Vanished. It then dispatches from the backlogs of agents,
// which the transaction has locked, and returns all tasks for Redis.
func (s *Store) endOrphans(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, agents []Agent,
	done *Advanced) (tasks []Task, err error) {
	defer wrapError(&err, "end deliveries whose event a reorg removed")
	var called []job.Job // parallel to the Vanished added here; without a kind: not retracted
	var v Vanished
	var raw []byte
	rows, _ := tx.Query(ctx, statement("orphans"), ids)
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
	lines := make(map[Agent][]Task)
	for i, known := range called {
		if known.Kind == "" {
			continue
		}
		v := &done.Vanished[len(done.Vanished)-len(called)+i]
		if v.Retraction, err = s.retract(ctx, tx, v.ID, known, lines); err != nil {
			return nil, err
		}
	}
	tasks = interleaveAgents(lines)
	more, err := s.dispatchAgents(ctx, tx, agents)
	return append(tasks, more...), err
}

// maxRetractions limits the retractions of one key. Their keys end in `@<blockHash>`, `@<blockHash>.2`, `.3`, …, one
// for each time that the same block disappears.
const maxRetractions = 20

// retraction is an existing delivery that informs an agent that a feedback is no longer on the chain.
type retraction struct {
	id, retracts uuid.UUID // the delivery's own id; the id of the delivery it retracts, uuid.Nil: unknown
	key          string
	reason       reason.Reason
}

// listRetractions returns the existing retractions of the feedback known, by their keys, and the maxRetractions keys
// that its retractions may have, in the order in which retract uses them.
func (s *Store) listRetractions(ctx context.Context, tx pgx.Tx, known job.Job) (there map[string]retraction, keys []string, _ error) {
	base := known.Retraction(uuid.Nil).Key()
	keys = append(keys, base)
	for n := 2; n <= maxRetractions; n++ {
		keys = append(keys, fmt.Sprintf("%s.%d", base, n))
	}
	rows, _ := tx.Query(ctx, `SELECT id, key, coalesce(reason, ''), coalesce((job ->> 'retracts')::uuid, $2) FROM herald.deliveries
		WHERE key = ANY($1)`, keys, uuid.Nil)
	there = make(map[string]retraction)
	var r retraction
	_, err := pgx.ForEachRow(rows, []any{&r.id, &r.key, &r.reason, &r.retracts}, func() error {
		there[r.key] = r
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look up the retractions of %s: %w", known.Key(), err)
	}
	return there, keys, nil
}

// retract inserts a retraction of the delivery id, whose job is the feedback known and whose agent was or may have been
// called. It adds the retraction's task to lines and returns its id. If id has a retraction that was not withdrawn, it
// returns that one's id. Like an earlier feedback, the retraction blocks the event that now has the same index until
// it has ended, but at most 60 s after its first attempt (holds_until).
func (s *Store) retract(ctx context.Context, tx pgx.Tx, id uuid.UUID, known job.Job, lines map[Agent][]Task) (uuid.UUID, error) {
	there, keys, err := s.listRetractions(ctx, tx, known)
	if err != nil {
		return uuid.Nil, err
	}
	a, err := newArrival(Intake{Job: known.Retraction(id), Source: Source{Name: SourceChain}})
	if err != nil {
		return uuid.Nil, err
	}
	a.read = true
	for _, a.key = range keys {
		r, taken := there[a.key]
		if taken && r.retracts == id && r.reason != reason.MinedAgain {
			return r.id, nil
		}
		if !taken {
			break
		}
	}
	if _, taken := there[a.key]; taken {
		return uuid.Nil, fmt.Errorf("retract %s: its block disappeared %d times", known.Key(), maxRetractions)
	}
	var row columns
	row.appendArrival(a, job.IDOf(a.key))
	made, err := s.insertColumns(ctx, tx, row)
	if err != nil {
		return uuid.Nil, fmt.Errorf("retract %s: %w", known.Key(), err)
	}
	fresh, isNew := made[job.IDOf(a.key)]
	if !isNew {
		return uuid.Nil, fmt.Errorf("retract %s: %w", known.Key(), errConcurrentUpdate)
	}
	if s.strict {
		if _, err := tx.Exec(ctx, `UPDATE herald.deliveries SET holds_until = 'infinity' WHERE id = $1`, job.IDOf(a.key)); err != nil {
			return uuid.Nil, fmt.Errorf("retract %s: %w", known.Key(), err)
		}
	}
	if fresh.dispatch > 0 {
		lines[a.agent] = append(lines[a.agent], Task{ID: job.IDOf(a.key), N: fresh.dispatch, Kind: a.kind})
	}
	return job.IDOf(a.key), nil
}

// retractDisplaced retracts the delivery h, whose agent was or may have been called and whose event was replaced. It
// does nothing if the stored job is deleted, unreadable or not a new feedback.
func (s *Store) retractDisplaced(ctx context.Context, tx pgx.Tx, h holder, lines map[Agent][]Task) error {
	var known job.Job
	if h.raw == nil || json.Unmarshal(h.raw, &known) != nil || known.Kind != job.KindNewFeedback {
		return nil
	}
	_, err := s.retract(ctx, tx, h.id, known, lines)
	return err
}

// markGone sets gone in those of holders whose events a reorg removed, as a follower recorded after reading up to the
// head. It does nothing if a follower did not read the arrivals in.
func (s *Store) markGone(ctx context.Context, tx pgx.Tx, in []arrival, holders map[string]holder) error {
	if in[0].readBy == nil || len(holders) == 0 {
		return nil
	}
	keys := make(map[uuid.UUID]string, len(holders))
	for key, h := range holders {
		keys[h.id] = key
	}
	var id uuid.UUID
	rows, _ := tx.Query(ctx, statement("vanished"), slices.Collect(maps.Keys(keys)))
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		h := holders[keys[id]]
		h.gone = true
		holders[keys[id]] = h
		return nil
	})
	if err != nil {
		return fmt.Errorf("look up deliveries whose event a reorg removed: %w", err)
	}
	return nil
}

// answerRead answers an arrival whose event (brought) a follower or a check read off the chain, and whose key has the
// delivery h with the job known. If known is the same event, h gets its present position, and is queued again if it
// ended because the event was missing. If known is another event, h gets brought, unless its agent was or may have been
// called or it has ended: then brought gets a new delivery with the key (displaceHolder). An unverified delivery keeps
// known: the answer is Conflict if brought contradicts it.
func (s *Store) answerRead(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	lines map[Agent][]Task) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.SameEvent(known) {
		switch {
		case h.gone:
			return s.acceptReturned(ctx, tx, a, h, brought, known, lines)
		case h.mayReopen():
			return s.reopenDelivery(ctx, tx, a, h)
		}
		return s.moveEvent(ctx, tx, a, h, brought, known, out)
	}
	field, _ := brought.Conflict(known)
	switch {
	case h.maybe && h.bound, h.status.Final() && !h.mayReopen() && (h.bound || h.verified):
		return s.displaceHolder(ctx, tx, a, h, lines)
	case h.mayReopen() && !h.called:
		return s.reopenDelivery(ctx, tx, a, h)
	case !h.bound && !h.verified:
		if field != "" {
			out.Verdict, out.Field = Conflict, field
		}
		return out, nil
	}
	if err := s.keepFirst(ctx, tx, h, known); err != nil {
		return out, err
	}
	return out, s.readEvent(ctx, tx, a, h)
}

// keepFirst stores the job known of the delivery h as its first hint, if h has no stored hint. The caller then replaces
// the job by the event that a follower read. The hint preserves the action that the job's sender chose.
func (s *Store) keepFirst(ctx context.Context, tx pgx.Tx, h holder, known job.Job) error {
	hints, stored, err := s.listHints(ctx, tx, h, known)
	if err != nil || stored > 0 || len(hints) == 0 {
		return err
	}
	b := &pgx.Batch{}
	queueHint(b, h.id, hints[0], h.raw, false)
	return tx.SendBatch(ctx, b).Close()
}

// readEvent replaces the job of the delivery h by a's, which a follower read off the chain. If h waits for the chain,
// it is queued again at once.
func (s *Store) readEvent(ctx context.Context, tx pgx.Tx, a arrival, h holder) error {
	b := &pgx.Batch{}
	b.Queue(statement("read_event"), namedStatement("read_event").args(a.eventArgs(h.id))...)
	b.Queue(statement("wake"), h.id)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("give %s the event of block %d: %w", a.key, a.Job.BlockNumber, err)
	}
	return nil
}

// moveEvent updates the position of h's event: the job known is replaced by brought, the same event as it is on the
// chain now. Action, metadata and headers stay those of known. It returns out, the answer prepared by the caller. It
// does nothing if the positions are equal.
func (s *Store) moveEvent(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	out Acceptance) (_ Acceptance, err error) {
	if brought.EventSum() == known.EventSum() {
		return out, nil
	}
	if brought.Tag1 == "" {
		brought.Tag1 = known.Tag1 // the log of an older form lacks it
	}
	brought.Action, brought.Meta, brought.IdentityRegistry = known.Action, known.Meta, known.IdentityRegistry
	a.Job, a.agent, a.SealedHeaders, a.Source = brought, jobAgent(brought), h.sealed, h.source
	if a.raw, err = encodeJob(brought); err != nil {
		return out, err
	}
	return out, s.readEvent(ctx, tx, a, h)
}

// acceptReturned answers a job whose event is on the chain again after a reorg had removed it and its delivery h was
// ended or retracted. It ends the open retractions of h. If the agent was or may have been called with one of these,
// the event becomes a new delivery, because the agent would take the old deliveryId for a repetition. Otherwise h is
// queued again if it ended because its event was missing, and else only gets the event's present position (moveEvent).
func (s *Store) acceptReturned(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	lines map[Agent][]Task) (Acceptance, error) {
	there, _, err := s.listRetractions(ctx, tx, known)
	if err != nil {
		return Acceptance{}, err
	}
	told := false
	for _, r := range there {
		if r.retracts != h.id && r.retracts != uuid.Nil { // the retraction of another delivery
			continue
		}
		var called bool
		if err := tx.QueryRow(ctx, statement("withdraw"), r.id).Scan(&called); err != nil {
			return Acceptance{}, fmt.Errorf("withdraw the retraction of %s: %w", a.key, err)
		}
		told = told || called
	}
	switch {
	case told:
		return s.displaceHolder(ctx, tx, a, h, lines)
	case h.mayReopen():
		return s.reopenDelivery(ctx, tx, a, h)
	}
	return s.moveEvent(ctx, tx, a, h, brought, known, Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status})
}

// recordGone records the outcome o of the claim c: its event is gone from the chain (o.Gone), and its agent was or may
// have been called. In the same transaction, it calls endGone.
func (s *Store) recordGone(ctx context.Context, c *Claim, o Outcome) (rec Recorded, err error) {
	a := c.Agent()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statement("lock_agent"), a.ChainID, a.Registry, a.ID); err != nil {
			return fmt.Errorf("lock the agent: %w", err)
		}
		b := &pgx.Batch{}
		s.queueRecord(b, c, o, SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt}, nil)
		if rec, err = readRecorded(tx.SendBatch(ctx, b), c, o, c.Attempt); err != nil {
			return err
		}
		return s.endGone(ctx, tx, c, *o.Gone, &rec)
	})
	return rec, err
}

// endGone retracts the delivery of the claim c, whose event is gone. If g names an event that has the key now, that
// event gets a delivery of its own, behind the retraction. The new tasks are appended to rec.Next.
func (s *Store) endGone(ctx context.Context, tx pgx.Tx, c *Claim, g Gone, rec *Recorded) error {
	lines := make(map[Agent][]Task)
	if err := s.replaceEvent(ctx, tx, c.Key, c.ID, c.Job, g, lines); err != nil {
		return err
	}
	rec.Next = append(rec.Next, interleaveAgents(lines)...)
	return nil
}

// replaceEvent handles that the event old of the delivery id is not on the chain. It retracts the delivery if its agent
// was or may have been called, and gives its key to a new delivery for g.Next. If g.Next is nil, or another delivery
// has the key already, it only retracts. It does nothing if the delivery's event is no longer old. Tasks are added to
// lines.
func (s *Store) replaceEvent(ctx context.Context, tx pgx.Tx, key string, id uuid.UUID, old job.Job, g Gone,
	lines map[Agent][]Task) error {
	holders, err := s.readHolders(ctx, tx, "id = $1", id)
	if err != nil {
		return err
	}
	for held, h := range holders {
		var now job.Job
		if json.Unmarshal(h.raw, &now) != nil || !now.SameEvent(old) {
			return nil
		}
		if g.Next == nil || held != key {
			if !h.maybe {
				return nil
			}
			return s.retractDisplaced(ctx, tx, h, lines)
		}
		a, err := newArrival(Intake{Job: *g.Next, Source: Source{Name: SourceChain}})
		if err != nil {
			return err
		}
		a.read = true
		if err := s.lockAgents(ctx, tx, []Agent{a.agent}); err != nil {
			return err
		}
		_, err = s.displaceHolder(ctx, tx, a, h, lines)
		return err
	}
	return nil
}
