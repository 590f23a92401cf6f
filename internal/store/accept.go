package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// MaxAccept is the maximum number of jobs of one Accept, which is one transaction with all their agents locked.
const MaxAccept = 500

// Intake is one job to accept.
type Intake struct {
	Job           job.Job
	SealedHeaders []byte // action.endpoint.headers, encrypted; nil: none
	Source        Source
	// SameHeaders reports whether another job's sealed headers have the same content as SealedHeaders. Nil means no.
	SameHeaders func(sealed []byte) bool

	// Refused, if not empty, is why the job is not valid. It is stored as rejected (invalid_job), because the intakes
	// from the chain and from Redis have no caller that could get an error.
	Refused string
	Key     string // overrides the job's key, for bytes that are not a job: "invalid:<sha256>"
	// Received is stored as the result of a Refused job: its bytes as JSON, with secrets masked. Nil stores nothing.
	Received json.RawMessage

	AgentChange AgentChange // for an AgentUpdated that was read off the chain

	// Traceparent is the trace that came with the job (W3C Trace Context); the delivery continues it. An invalid value
	// is ignored. A known delivery keeps its trace.
	Traceparent string

	// Bulk: the job is part of a backfill. Its delivery comes after the other deliveries of its agent, and its tasks go
	// to the lane bulk. Bulk must be equal for all jobs of one call. A known delivery keeps its lane.
	Bulk bool
}

// Verdict is the result of an Intake.
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // a new delivery, or a known one that was queued again
	Known     Verdict = "known"     // the key has a delivery
	Conflict  Verdict = "conflict"  // the key has a delivery with another action or, without verification, another content
	Refreshed Verdict = "refreshed" // AgentUpdated: the agent's epoch was raised; there is no delivery
	undecided Verdict = ""
)

// Acceptance is the answer to one Intake. For Known, ID and Status are those of the existing delivery.
type Acceptance struct {
	Verdict Verdict
	ID      uuid.UUID
	Key     string
	Field   string   // for Conflict: the field of the event that differs, or "action"
	Differs []string // for Known: the job's fields that differ from the event that was read from the chain
	Status  Status   // of the delivery
}

// Accept stores jobs as deliveries and dispatches as many as their agents may have. The caller puts the returned tasks
// into Redis. Answers are in the order of the intakes. Calling it again with the same jobs is harmless: they are Known.
// It takes at most MaxAccept jobs.
//
// A job cannot make the others fail: a job that Postgres cannot store is stored as rejected, like a Refused one.
func (s *Store) Accept(ctx context.Context, in []Intake) (out []Acceptance, tasks []Task, err error) {
	if len(in) > MaxAccept {
		return nil, nil, fmt.Errorf("store: at most %d jobs at once, got %d", MaxAccept, len(in))
	}
	if len(in) == 0 {
		return nil, nil, nil
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "accept %d jobs", len(in))
	rows, err := newArrivals(in)
	if err != nil {
		return nil, nil, err
	}
	err = s.retryAccept(ctx, func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
			out, tasks, err = s.acceptIn(ctx, tx, rows)
			return err
		})
	})
	if err != nil {
		return nil, nil, err // nothing was committed, so nothing was dispatched
	}
	return out, tasks, nil
}

// retryAccept runs a transaction that accepts jobs, and runs it again after a conflict with a concurrent transaction.
func (s *Store) retryAccept(ctx context.Context, transact func() error) error {
	for missed := 0; ; {
		err := transact()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case shouldRetry(err):
		case missedConflict(err) && missed < maxMissed:
			missed++
		default:
			return err
		}
	}
}

// errConcurrentUpdate: a concurrent transaction changed the delivery. The caller retries.
var errConcurrentUpdate = errors.New("another transaction changed the delivery")

// shouldRetry reports whether the transaction failed because of a concurrent one that its agent locks do not exclude:
// one with the same key under another identity registry, or with a refused job. One of the two always commits, so
// retrying ends.
func shouldRetry(err error) bool {
	var pe *pgconn.PgError
	const deadlockDetected = "40P01"
	return errors.Is(err, errConcurrentUpdate) || errors.As(err, &pe) && pe.Code == deadlockDetected
}

// maxMissed limits the retries after missedConflict in a row; more of them have another cause.
const maxMissed = 5

// missedConflict reports whether ON CONFLICT overlooked the row that has the key. Its scan sees rows as they are at
// that moment. While another transaction updates the row, the scan can miss it: the old index entry is already dead,
// and the new one is before the scan's position. The insert then violates the primary key on id, which ON CONFLICT
// (key) does not cover. The next try finds the row.
func missedConflict(err error) bool {
	var pe *pgconn.PgError
	const uniqueViolation = "23505"
	return errors.As(err, &pe) && pe.Code == uniqueViolation && pe.TableName == "deliveries"
}

// arrival is an intake in storable form.
type arrival struct {
	Intake
	key   string
	kind  string
	agent Agent
	raw   []byte // null for a refused job, which may contain secrets in plain text
	// readBy is the cursor of the follower that read the event off the chain, so that its position there is known. Nil:
	// a client claims the position.
	readBy *CursorKey
	read   bool // a follower or a check read the event off the chain, or the ledger made the job
}

// maxKeyBytes is longer than every valid key and short enough for Postgres' index.
const maxKeyBytes = 1 << 10

func newArrivals(in []Intake) ([]arrival, error) {
	rows := make([]arrival, len(in))
	for i, it := range in {
		var err error
		if rows[i], err = newArrival(it); err != nil {
			return nil, fmt.Errorf("job %d: %w", i+1, err)
		}
	}
	return rows, nil
}

// newArrival makes an intake storable. A job that Postgres cannot store becomes a refused one; an invalid traceparent
// is dropped.
func newArrival(it Intake) (arrival, error) {
	a := arrival{Intake: it, key: storable.Text(cmp.Or(it.Key, it.Job.Key()), maxKeyBytes),
		kind: storable.Text(string(it.Job.Kind), maxNameBytes), agent: jobAgent(it.Job)}
	a.Refused = storable.Text(it.Refused, maxErrorBytes)
	if _, ok := tracecontext.Parse(it.Traceparent); !ok {
		a.Traceparent = ""
	}
	if a.isAgentUpdate() {
		return a, nil
	}
	if a.key == "" {
		return a, errors.New("a delivery needs a key")
	}
	if a.Refused == "" {
		raw, err := json.Marshal(it.Job)
		if err != nil {
			return a, fmt.Errorf("encode the job of %s: %w", a.key, err)
		}
		var ok bool
		if a.raw, ok = storable.Repair(raw); !ok {
			a.Refused = "the job nests too deeply or holds a number too long to be stored"
		} else if it.Job.ChainID > math.MaxInt64 {
			a.Refused = "chainId is too large to be stored"
		}
	}
	if a.Refused != "" {
		a.raw, a.SealedHeaders, a.Received = nil, nil, storable.JSON(a.Received, maxSideBytes)
		a.agent.ChainID = min(a.agent.ChainID, math.MaxInt64)
	}
	return a, nil
}

// isAgentUpdate reports whether the job only raises its agent's epoch and becomes no delivery.
func (a arrival) isAgentUpdate() bool { return a.Job.Kind == job.KindAgentUpdated && a.Refused == "" }

// acceptIn accepts jobs within a transaction, MaxAccept at a time. It locks all agents first, in one order.
func (s *Store) acceptIn(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	if err := s.lockAgents(ctx, tx, arrivalAgents(in)); err != nil {
		return nil, nil, err
	}
	return s.acceptLocked(ctx, tx, in)
}

// acceptLocked is acceptIn for jobs whose agents are locked.
func (s *Store) acceptLocked(ctx context.Context, tx pgx.Tx,
	in []arrival) (out []Acceptance, tasks []Task, err error) {
	for part := range slices.Chunk(in, MaxAccept) {
		answers, handed, err := s.acceptPart(ctx, tx, part)
		if err != nil {
			return nil, nil, err
		}
		out, tasks = append(out, answers...), append(tasks, handed...)
	}
	return out, tasks, nil
}

// acceptPart accepts at most MaxAccept jobs whose agents are locked: it raises epochs, inserts new jobs, answers known
// keys, and then dispatches for agents that may still have free slots.
func (s *Store) acceptPart(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	out = make([]Acceptance, len(in))
	lines := make(map[Agent][]Task)
	if err := s.raiseEpochs(ctx, tx, in, out); err != nil {
		return nil, nil, err
	}
	if err := s.insertNew(ctx, tx, in, out, lines); err != nil {
		return nil, nil, err
	}
	if err := s.answerKnownKeys(ctx, tx, in, out, lines); err != nil {
		return nil, nil, err
	}
	// If all jobs of an agent were new and dispatched by the insert, its backlog is empty.
	if err := s.dispatchInto(ctx, tx, listAgentsBehind(in, out, lines), lines); err != nil {
		return nil, nil, err
	}
	return out, interleaveAgents(lines), nil
}

// listAgentsBehind returns the distinct agents whose backlogs may contain deliveries to dispatch. These are the agents
// with a job that was not settled: a job is settled if its new delivery is waiting or has a task in lines (the tasks
// that acceptPart has dispatched so far, by agent). So an agent with a job whose key was known is also returned.
// Refused jobs and those of kind AgentUpdated do not count.
func listAgentsBehind(in []arrival, out []Acceptance, lines map[Agent][]Task) []Agent {
	handed := make(map[uuid.UUID]bool, len(in))
	for _, line := range lines {
		for _, t := range line {
			handed[t.ID] = true
		}
	}
	var agents []Agent
	for i, a := range in {
		isSettled := out[i].Verdict == Accepted && (handed[out[i].ID] || out[i].Status == Waiting)
		if a.Refused == "" && out[i].Verdict != Refreshed && !isSettled {
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// lockAgents inserts missing rows of agents and locks all of them in one order.
func (s *Store) lockAgents(ctx context.Context, tx pgx.Tx, agents []Agent) error {
	chains, registries, ids := splitAgents(agents)
	b := &pgx.Batch{}
	b.Queue(statement("make_agents"), chains, registries, ids)
	b.Queue(statement("lock_agents"), chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// splitAgents returns agents as the arrays that the statements take.
func splitAgents(agents []Agent) (chains []int64, registries, ids []string) {
	for _, a := range agents {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	return chains, registries, ids
}

// raiseEpochs raises the epochs of agents that changed on the chain.
func (s *Store) raiseEpochs(ctx context.Context, tx pgx.Tx, in []arrival, out []Acceptance) error {
	b := &pgx.Batch{}
	for i, a := range in {
		if a.isAgentUpdate() {
			queueAgentChange(b, a)
			out[i] = Acceptance{Verdict: Refreshed}
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, b).Close()
}

// insertNew inserts the jobs with new keys and adds the dispatched ones to lines. The verdict of known keys stays
// undecided.
func (s *Store) insertNew(ctx context.Context, tx pgx.Tx, in []arrival, out []Acceptance,
	lines map[Agent][]Task) error {
	var rows columns
	for i, a := range in {
		if out[i].Verdict == undecided {
			rows.appendArrival(a, job.IDOf(a.key))
		}
	}
	made, err := s.insertColumns(ctx, tx, rows)
	if err != nil {
		return err
	}
	kept := &pgx.Batch{}
	for i, a := range in {
		id := job.IDOf(a.key)
		row, isNew := made[id]
		if out[i].Verdict != undecided || !isNew {
			continue
		}
		if a.Refused != "" && a.Received != nil { // rare, so accept.sql has no column for it
			kept.Queue(`UPDATE herald.deliveries SET result = $2 WHERE id = $1`, id, a.Received)
		}
		delete(made, id) // a second job with the same key in this batch is known
		out[i] = a.newAcceptance(id, row)
		if row.dispatch > 0 {
			lines[a.agent] = append(lines[a.agent], Task{ID: id, N: row.dispatch, Kind: a.kind, Bulk: a.Bulk})
		}
	}
	if kept.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, kept).Close()
}

// newAcceptance returns the answer to an arrival that was inserted.
func (a arrival) newAcceptance(id uuid.UUID, row newRow) Acceptance {
	status := Queued
	switch {
	case a.Refused != "":
		status = Rejected
	case row.behind:
		status = Waiting
	}
	return Acceptance{Verdict: Accepted, ID: id, Key: a.key, Status: status}
}

// columns has the arrays of accept.sql.
type columns struct {
	ids                  []uuid.UUID
	keys, kinds          []string
	chains               []int64
	registries, agents   []string
	orderKeys, orderSeqs []string
	jobs, headers        [][]byte
	refusals             []*string
	bulks                []bool
	traceparents         []*string
	sources              []string
	trusts               []int
	bound                bool // for all jobs
}

func (c *columns) appendArrival(a arrival, id uuid.UUID) {
	c.ids, c.keys, c.kinds = append(c.ids, id), append(c.keys, a.key), append(c.kinds, a.kind)
	c.chains = append(c.chains, int64(a.agent.ChainID))
	c.registries, c.agents = append(c.registries, a.agent.Registry), append(c.agents, a.agent.ID)
	c.orderKeys, c.orderSeqs = append(c.orderKeys, a.Job.OrderKey()), append(c.orderSeqs, fmt.Sprint(a.Job.OrderSeq()))
	c.jobs, c.headers, c.refusals = append(c.jobs, a.raw), append(c.headers, a.SealedHeaders),
		append(c.refusals, nullIfEmpty(a.Refused))
	c.bulks, c.traceparents = append(c.bulks, a.Bulk), append(c.traceparents, nullIfEmpty(a.Traceparent))
	c.sources, c.trusts, c.bound = append(c.sources, a.Source.Name), append(c.trusts, int(a.Source.Trust)), a.read
}

// newRow is a delivery that accept.sql inserted.
type newRow struct {
	dispatch int  // its dispatch counter; 0: it has no task
	behind   bool // it waits for another delivery of its ordering key
}

// insertColumns inserts deliveries and returns the new ones by id.
func (s *Store) insertColumns(ctx context.Context, tx pgx.Tx, c columns) (map[uuid.UUID]newRow, error) {
	rows, _ := tx.Query(ctx, statement("accept"), namedStatement("accept").args(pgx.NamedArgs{
		"ids": c.ids, "keys": c.keys, "kinds": c.kinds, "chain_ids": c.chains, "registries": c.registries,
		"agent_ids":  c.agents,
		"order_keys": c.orderKeys, "order_seqs": c.orderSeqs, "jobs": c.jobs, "sealed_headers": c.headers,
		"errors": c.refusals, "bulks": c.bulks, "traceparents": c.traceparents, "sources": c.sources, "trusts": c.trusts, "bound": c.bound,
		"max_dispatched": MaxDispatchedPerAgent, "strict": s.strict})...)
	made := make(map[uuid.UUID]newRow, len(c.ids))
	var id uuid.UUID
	var n newRow
	_, err := pgx.ForEachRow(rows, []any{&id, &n.dispatch, &n.behind}, func() error {
		made[id] = n
		return nil
	})
	return made, err
}

// holder is the delivery that has a key.
type holder struct {
	id       uuid.UUID
	status   Status
	reason   reason.Reason
	raw      []byte // the job; null: deleted by retention, or the job was Refused
	sealed   []byte // the sealed headers of the job's endpoint
	called   bool
	maybe    bool   // the agent was called, or may have been
	bound    bool   // the job was read from the chain
	verified bool   // workers verify the events of its chain
	source   Source // of the job's action
	gone     bool   // the follower has read that the chain no longer has its event
}

// isNotFound reports whether a check did not find the event where the hints say.
func (h holder) isNotFound() bool { return h.status == Rejected && h.reason == reason.EventNotFound }

// mayReopen reports whether another job or reading of the event queues the delivery again.
func (h holder) mayReopen() bool {
	return h.isNotFound() || h.status == Cancelled && h.reason == reason.Reorg
}

// answerKnownKeys decides about keys that have a delivery. The delivery is known, or in conflict, or it is queued again,
// or it gives the key to another event.
func (s *Store) answerKnownKeys(ctx context.Context, tx pgx.Tx, in []arrival, out []Acceptance,
	lines map[Agent][]Task) error {
	var keys []string
	for i, a := range in {
		if out[i].Verdict == undecided {
			keys = append(keys, a.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	holders, err := s.readHolders(ctx, tx, "key = ANY($1)", keys)
	if err != nil {
		return err
	}
	if err := s.markGone(ctx, tx, in, holders); err != nil {
		return err
	}
	for i, a := range in {
		if out[i].Verdict != undecided {
			continue
		}
		h, ok := holders[a.key]
		if !ok {
			return fmt.Errorf("look up %s: %w", a.key, errConcurrentUpdate)
		}
		if out[i], err = s.answerKnownKey(ctx, tx, a, h, lines); err != nil {
			return err
		}
		if out[i].Verdict == Accepted { // the next job of this batch with the same key must find the new state
			holders[a.key] = holder{id: out[i].ID, status: Queued, raw: a.raw, sealed: a.SealedHeaders, source: a.Source,
				bound: a.read, verified: h.verified}
		}
	}
	return nil
}

// readHolders reads the deliveries for which a condition with the parameter $1 is true, by key.
func (s *Store) readHolders(ctx context.Context, tx pgx.Tx, condition string, arg any) (map[string]holder, error) {
	rows, _ := tx.Query(ctx, statement("known")+" WHERE "+condition, arg)
	found := make(map[string]holder)
	var key string
	var h holder
	_, err := pgx.ForEachRow(rows, []any{&key, &h.id, &h.status, &h.reason, &h.raw, &h.sealed, &h.called, &h.maybe, &h.bound,
		&h.verified, &h.source.Name, &h.source.Trust}, func() error {
		found[key] = h
		h.raw, h.sealed = nil, nil // so that the next row is scanned into new memory
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up known keys: %w", err)
	}
	return found, nil
}

// answerKnownKey decides about one job whose key has a delivery, see answerKnownKeys. It adds tasks to lines.
func (s *Store) answerKnownKey(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	lines map[Agent][]Task) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if a.Refused != "" {
		return out, nil
	}
	var known, brought job.Job
	// The job as it would be stored, for the comparison: strings that were repaired in one were repaired in the other.
	if err := json.Unmarshal(a.raw, &brought); err != nil {
		return out, fmt.Errorf("read back the job of %s: %w", a.key, err)
	}
	isReadable := h.raw != nil && json.Unmarshal(h.raw, &known) == nil
	isInvalid := h.status == Rejected && h.reason == reason.InvalidJob
	switch {
	case !isReadable && (h.mayReopen() || isInvalid) && (!h.called || a.read):
		return s.reopenDelivery(ctx, tx, a, h)
	case !isReadable: // a newer version may be able to read the job
		return out, nil
	case a.read:
		return s.answerRead(ctx, tx, a, h, brought, known, lines)
	case !h.verified:
		return s.answerUnverified(ctx, tx, a, h, brought, known)
	case known.Retracts != "": // the ledger made it: other jobs add nothing
		return out, nil
	}
	return s.answerHint(ctx, tx, a, h, brought, known)
}

// answerUnverified answers a job (brought) whose key already has the delivery h with the job known, on a chain whose
// events are not verified. If the delivery was rejected because its event was not found, or cancelled by a reorg, and
// its agent was not called, it is queued again with brought. Otherwise it keeps known, and the answer is Conflict if
// the event's content, the action or the headers differ.
func (s *Store) answerUnverified(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	field, differs := brought.Conflict(known)
	switch {
	case h.mayReopen() && !h.called:
		return s.reopenDelivery(ctx, tx, a, h)
	case differs:
		out.Verdict, out.Field = Conflict, field
	case brought.ActionSum() != known.ActionSum() || !sameHeaders(a.SealedHeaders, h.sealed, a.SameHeaders):
		out.Verdict, out.Field = Conflict, "action"
	}
	return out, nil
}

// answerHint answers a job on a chain whose events are verified. The job only says where to look, and how to call the
// agent. Intakes cannot ask the chain, so the job becomes a hint. If a job of an equal sender has another action, the
// answer is Conflict.
func (s *Store) answerHint(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.EventSum() != known.EventSum() || a.Source.Trust > h.source.Trust {
		locked, err := s.readHolders(ctx, tx, "key = $1 FOR UPDATE OF d", a.key)
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
	if HasOtherAction(hints, brought, a.SealedHeaders, a.Source.Trust, a.SameHeaders) {
		out.Verdict, out.Field, out.Differs = Conflict, "action", nil
	}
	isElsewhere := brought.EventSum() != known.EventSum()
	switch {
	case h.mayReopen() && !h.called:
		added, err := s.addHint(ctx, tx, a, h, brought, known, false)
		if err != nil || !added && h.isNotFound() {
			return out, err
		}
		return s.reopenDelivery(ctx, tx, a, h)
	case h.status.Final() || h.maybe:
		if !h.bound || brought.NamesEvent(known) {
			return out, nil
		}
		_, err = s.addHint(ctx, tx, a, h, brought, known, true)
	case isElsewhere || a.Source.Trust > h.source.Trust:
		_, err = s.addHint(ctx, tx, a, h, brought, known, false)
	}
	return out, err
}

// reopenDelivery queues a delivery again whose event has returned, or may be where another job says. A delivery whose
// agent was called is queued again only if the event was read off the chain.
func (s *Store) reopenDelivery(ctx context.Context, tx pgx.Tx, a arrival, h holder) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	args := a.eventArgs(h.id)
	args["key"], args["read"] = a.key, a.read
	err := tx.QueryRow(ctx, statement("reopen"), namedStatement("reopen").args(args)...).Scan(&out.ID)
	if err != nil { // no row: another transaction queued it; errConcurrentUpdate makes the caller retry
		return out, fmt.Errorf("queue %s anew: %w", a.key, noRows(err, errConcurrentUpdate))
	}
	if _, err := tx.Exec(ctx, statement("revive_revocations"), []uuid.UUID{h.id}); err != nil {
		return out, fmt.Errorf("queue the revocation of %s anew: %w", a.key, err)
	}
	out.Verdict, out.Status = Accepted, Queued
	return out, nil
}

// eventArgs returns the arguments of the statements that replace the job of a delivery by the arrival's.
func (a arrival) eventArgs(id uuid.UUID) pgx.NamedArgs {
	return pgx.NamedArgs{"delivery_id": id, "job": a.raw, "sealed_headers": a.SealedHeaders, "source": a.Source.Name,
		"trust": int(a.Source.Trust), "registry": a.agent.Registry, "agent_id": a.agent.ID, "order_key": a.Job.OrderKey(),
		"order_seq": fmt.Sprint(a.Job.OrderSeq())}
}

// displaceHolder renames the key of a delivery whose event is not on the chain, retracts it if its agent was or may have
// been called, and inserts the arrival with that key.
func (s *Store) displaceHolder(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	lines map[Agent][]Task) (out Acceptance, err error) {
	var moved string
	if err = noRows(tx.QueryRow(ctx, statement("displace"), h.id, a.key).Scan(&moved), errConcurrentUpdate); err != nil {
		return out, fmt.Errorf("free the key %s: %w", a.key, err)
	}
	if h.maybe {
		if err := s.retractDisplaced(ctx, tx, h, lines); err != nil {
			return out, err
		}
	}
	var row columns
	row.appendArrival(a, job.IDOf(moved))
	made, err := s.insertColumns(ctx, tx, row)
	if err != nil {
		return out, fmt.Errorf("take the key %s: %w", a.key, err)
	}
	fresh, isNew := made[job.IDOf(moved)]
	if !isNew {
		return out, fmt.Errorf("take the key %s: %w", a.key, errConcurrentUpdate)
	}
	out = a.newAcceptance(job.IDOf(moved), fresh)
	if fresh.dispatch > 0 {
		lines[a.agent] = append(lines[a.agent], Task{ID: out.ID, N: fresh.dispatch, Kind: a.kind, Bulk: a.Bulk})
	}
	return out, nil
}

// dispatchAgents dispatches the next deliveries of several agents. The caller has locked their rows.
func (s *Store) dispatchAgents(ctx context.Context, tx pgx.Tx, agents []Agent) ([]Task, error) {
	lines := make(map[Agent][]Task, len(agents))
	if err := s.dispatchInto(ctx, tx, agents, lines); err != nil {
		return nil, err
	}
	return interleaveAgents(lines), nil
}

// maxDispatchRounds limits the rounds of one transaction. A round reads at most MaxDispatchedPerAgent deliveries of
// each agent.
const maxDispatchRounds = 32

// dispatchInto dispatches the next deliveries of agents that are locked, and adds their tasks to lines.
func (s *Store) dispatchInto(ctx context.Context, tx pgx.Tx, agents []Agent, lines map[Agent][]Task) error {
	if len(agents) == 0 {
		return nil
	}
	chains, registries, ids := splitAgents(agents)
	var t Task
	var a Agent
	var behind bool
	// A delivery that leaves the backlog to wait for another one frees a slot, so the loop runs again. The rest of a long
	// backlog of one ordering key, which is rare, is left to the reconciler, which runs every few seconds.
	again := true
	for round := 0; again && round < maxDispatchRounds; round++ {
		again = false
		rows, _ := tx.Query(ctx, statement("dispatch_agents"), chains, registries, ids, MaxDispatchedPerAgent, s.strict)
		_, err := pgx.ForEachRow(rows, []any{&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &a.ChainID, &a.Registry, &a.ID, &behind},
			func() error {
				if again = again || behind; !behind {
					lines[a] = append(lines[a], t)
				}
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// interleaveAgents lists the agents' tasks in turn, one of each agent at a time. Deliveries of one agent that run at
// once wait for each other when they are recorded, and for the limit of calls per origin.
func interleaveAgents(lines map[Agent][]Task) (tasks []Task) {
	agents := distinctAgents(slices.Collect(maps.Keys(lines)))
	for turn := range MaxDispatchedPerAgent {
		for _, a := range agents {
			if turn < len(lines[a]) {
				tasks = append(tasks, lines[a][turn])
			}
		}
	}
	return tasks
}

// arrivalAgents returns the distinct agents of a batch, sorted. It omits refused jobs, because bytes that
// are not a job have no agent.
func arrivalAgents(in []arrival) []Agent {
	agents := make([]Agent, 0, len(in))
	for _, a := range in {
		if a.Refused == "" { // bytes that are not a job have no agent
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// distinctAgents returns the distinct agents, sorted.
func distinctAgents(agents []Agent) []Agent {
	slices.SortFunc(agents, func(a, b Agent) int {
		return cmp.Or(cmp.Compare(a.ChainID, b.ChainID), strings.Compare(a.Registry, b.Registry),
			strings.Compare(a.ID, b.ID))
	})
	return slices.Compact(agents)
}

// jobAgent returns the agent of a job; a job without an agent id gets "0".
func jobAgent(j job.Job) Agent {
	id := "0"
	if j.AgentID != nil {
		id = j.AgentID.String()
	}
	return Agent{ChainID: j.ChainID, Registry: strings.ToLower(j.IdentityRegistry.Hex()), ID: id}
}
