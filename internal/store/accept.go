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
	// SameHeaders reports whether sealed, the encrypted headers of another job, has the same content as SealedHeaders.
	// If SameHeaders is nil, encrypted headers of two jobs always count as different.
	SameHeaders func(sealed []byte) bool

	// Refused, if not empty, is why the job is not valid. The job is stored as a rejected delivery (invalid_job),
	// because jobs from the chain and from Redis have no caller that could get an error.
	Refused string
	Key     string // overrides the job's key, for bytes that are not a job: "invalid:<sha256>"
	// Received, for a Refused job only, is what was received, as JSON with secrets masked. It is stored as the
	// delivery's result. Nil stores nothing.
	Received json.RawMessage

	AgentChange AgentChange // details of the event, if Job is an AgentUpdated that was read off the chain

	// Traceparent is the trace that came with the job (W3C Trace Context); the delivery continues it. An invalid value
	// is ignored. A known delivery keeps its trace.
	Traceparent string

	// Bulk reports whether the job is part of a backfill. Its delivery is dispatched after its agent's deliveries that
	// are not, and its tasks go to the queue for backfills. Bulk must be equal for all jobs of one call. If the key
	// already has a delivery, that one's Bulk stays.
	Bulk bool
}

// Verdict is the result of an Intake.
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // a new delivery, or a known one that was queued again
	Known     Verdict = "known"     // the key has a delivery
	Conflict  Verdict = "conflict"  // the key has a delivery with another action or, if unverified, event content
	Refreshed Verdict = "refreshed" // AgentUpdated: the agent's epoch was raised; there is no delivery
	undecided Verdict = ""
)

// Acceptance is the answer to one Intake. For Known and Conflict, ID and Status are those of the existing delivery. For
// Refreshed, only Verdict is set.
type Acceptance struct {
	Verdict Verdict
	ID      uuid.UUID
	Key     string
	Field   string   // for Conflict: the field of the event that differs, or "action"
	Differs []string // for Known: the job's fields that differ from the event that was read from the chain
	Status  Status   // of the delivery
}

// Accept stores at most MaxAccept jobs as deliveries, in one transaction, and dispatches deliveries of their agents, up
// to MaxDispatchedPerAgent per agent. The caller puts the returned tasks into Redis. out[i] is the answer to in[i]. A
// repeated call with the same jobs is harmless: it returns Known.
//
// A job that Postgres cannot store does not make the call fail: it becomes a rejected delivery, like a Refused one.
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

// retryAccept calls transact, which must run one whole transaction. It calls transact again while it fails because of a
// concurrent transaction (shouldRetry without limit, missedConflict up to maxMissed times) and ctx has not ended.
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

// shouldRetry reports whether a transaction failed because of a concurrent one: err is errConcurrentUpdate or Postgres
// reported a deadlock. The locks of agents do not exclude a concurrent transaction with the same key under another
// identity registry, or with a refused job. One of the two always commits, so retrying ends.
func shouldRetry(err error) bool {
	var pe *pgconn.PgError
	const deadlockDetected = "40P01"
	return errors.Is(err, errConcurrentUpdate) || errors.As(err, &pe) && pe.Code == deadlockDetected
}

// maxMissed limits retryAccept's retries after missedConflict. If the error persists, it has another cause.
const maxMissed = 5

// missedConflict reports whether err is a unique violation in deliveries: ON CONFLICT (key) overlooked the existing row
// with the key. Its index scan can miss a row while another transaction updates it: the old index entry is already
// dead, and the new one is before the scan's position. The insert then violates the primary key on id, which
// ON CONFLICT (key) does not cover. A retry finds the row.
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
	raw   []byte // Job as stored JSON; nil for a refused job, which may contain secrets in plain text
	// readBy is the cursor of the follower that read the event off the chain. Nil: no follower read it, so the event's
	// block is not remembered for reorgs.
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

// newArrival makes an intake storable. A job that Postgres cannot store becomes a refused one. An invalid traceparent
// is dropped. It returns an error if the key is empty or the job cannot be encoded as JSON.
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

// acceptIn accepts any number of jobs within a transaction. It locks the jobs' agents, sorted to avoid deadlocks, and
// then calls acceptLocked.
func (s *Store) acceptIn(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	if err := s.lockAgents(ctx, tx, arrivalAgents(in)); err != nil {
		return nil, nil, err
	}
	return s.acceptLocked(ctx, tx, in)
}

// acceptLocked is acceptIn for jobs whose agents the transaction has already locked. It accepts MaxAccept jobs at a
// time. Answers are in the order of the jobs.
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

// acceptPart accepts at most MaxAccept jobs whose agents are locked. It raises the epochs of updated agents, inserts
// jobs with new keys, answers jobs with known keys, and dispatches from the backlogs of the jobs' agents.
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

// lockAgents inserts the missing rows of agents and locks the rows of all of them until the transaction ends. The
// statement locks in one fixed order, so that two transactions do not deadlock.
func (s *Store) lockAgents(ctx context.Context, tx pgx.Tx, agents []Agent) error {
	chains, registries, ids := splitAgents(agents)
	b := &pgx.Batch{}
	b.Queue(statement("make_agents"), chains, registries, ids)
	b.Queue(statement("lock_agents"), chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// splitAgents returns the fields of agents as three parallel slices, which are array parameters of statements.
func splitAgents(agents []Agent) (chains []int64, registries, ids []string) {
	for _, a := range agents {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	return chains, registries, ids
}

// raiseEpochs raises the epochs of the agents of all AgentUpdated jobs in in, stores transfers of ownership, and sets
// the answers of these jobs in out to Refreshed.
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

// insertNew inserts a delivery for each undecided job whose key is new. It sets its answer in out to Accepted and, if
// the insert dispatched it, adds its task to lines (the tasks of each agent). The verdict of jobs with known keys stays
// undecided, also that of a second job with the same key.
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

// newAcceptance returns the answer (Accepted) to an arrival that was inserted as row. The status is Rejected for a
// refused job, Waiting if the delivery waits for another one of its ordering key, and Queued otherwise.
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

// columns has the parameters of accept.sql: parallel slices, one element per delivery to insert.
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
	bound                bool // the events were read off the chain (arrival.read); equal for all jobs
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

// insertColumns inserts deliveries, and dispatches them while their agents have free slots. It skips keys that have a
// delivery already, and returns the inserted rows by id.
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

// holder is the existing delivery that has the key of an arriving job.
type holder struct {
	id       uuid.UUID
	status   Status
	reason   reason.Reason
	raw      []byte // the job; null: deleted by retention, or the job was Refused
	sealed   []byte // the sealed headers of the job's endpoint
	called   bool   // a call of the agent was recorded
	maybe    bool   // called, or an attempt without an outcome may have called the agent
	bound    bool   // the job was read from the chain
	verified bool   // workers verify the events of its chain
	source   Source // of the job's action
	gone     bool   // the follower has read that the chain no longer has its event
}

// isNotFound reports whether the delivery was rejected because a check did not find its event on the chain.
func (h holder) isNotFound() bool { return h.status == Rejected && h.reason == reason.EventNotFound }

// mayReopen reports whether the delivery ended because its event was not found, or was removed by a reorg. Another job
// with its key, or reading the event off the chain, can then queue it again.
func (h holder) mayReopen() bool {
	return h.isNotFound() || h.status == Cancelled && h.reason == reason.Reorg
}

// answerKnownKeys sets the answers in out of all undecided jobs, whose keys have a delivery. The answer is Known or
// Conflict, or Accepted if the delivery was queued again or the key was given to a new delivery (displaceHolder). New
// tasks are added to lines. It returns errConcurrentUpdate if a key no longer has a delivery.
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

// readHolders reads the deliveries that match condition, a WHERE clause in which $1 is arg. The result is by key.
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

// answerKnownKey answers one job a whose key has the delivery h, see answerKnownKeys. A job that a follower or a check
// read off the chain goes to answerRead, one on an unverified chain to answerUnverified, any other to answerHint. If
// the stored job cannot be read, the delivery is queued again with a's job if it may be, otherwise it stays as it is.
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

// answerHint answers a client's job (brought) whose key has the delivery h with the job known, on a chain whose events
// are verified. A worker will check brought against the chain, so it is stored as a hint if it names another position
// or has a higher trust than h. It queues h again if its event was missing and its agent was not called. After the
// call or the end of h, a hint only makes a worker read the event again (Review). The answer is Conflict if a hint of
// the same trust has another action.
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

// reopenDelivery queues the ended delivery h again, with the job of a, because its event has returned to the chain or
// may be at the position that a names. If h's agent was called, a must have been read off the chain. It returns
// errConcurrentUpdate if another transaction has already changed h.
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

// eventArgs returns the arguments that reopen.sql and read_event.sql share. These statements replace the job of the
// delivery id by the arrival's job.
func (a arrival) eventArgs(id uuid.UUID) pgx.NamedArgs {
	return pgx.NamedArgs{"delivery_id": id, "job": a.raw, "sealed_headers": a.SealedHeaders, "source": a.Source.Name,
		"trust": int(a.Source.Trust), "registry": a.agent.Registry, "agent_id": a.agent.ID, "order_key": a.Job.OrderKey(),
		"order_seq": fmt.Sprint(a.Job.OrderSeq())}
}

// displaceHolder gives the key of the delivery h, whose event is not on the chain, to a new delivery for the arrival,
// and returns the answer for the new one. h gets another key, is cancelled if it is open and not running, and is
// retracted if its agent was or may have been called. New tasks are added to lines.
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

// dispatchAgents dispatches the next deliveries from the backlogs of agents, up to MaxDispatchedPerAgent per agent, and
// returns their tasks, the agents interleaved. The caller has locked the rows of the agents.
func (s *Store) dispatchAgents(ctx context.Context, tx pgx.Tx, agents []Agent) ([]Task, error) {
	lines := make(map[Agent][]Task, len(agents))
	if err := s.dispatchInto(ctx, tx, agents, lines); err != nil {
		return nil, err
	}
	return interleaveAgents(lines), nil
}

// maxDispatchRounds limits how often dispatchInto runs its statement. One round reads at most MaxDispatchedPerAgent
// deliveries of each agent.
const maxDispatchRounds = 32

// dispatchInto is dispatchAgents that adds the tasks to lines, by agent, instead of returning them.
func (s *Store) dispatchInto(ctx context.Context, tx pgx.Tx, agents []Agent, lines map[Agent][]Task) error {
	if len(agents) == 0 {
		return nil
	}
	chains, registries, ids := splitAgents(agents)
	var t Task
	var a Agent
	var behind bool
	// A delivery that leaves the backlog to wait for another one frees a slot, so the loop runs again. The rest of a
	// long backlog of one ordering key, which is rare, is left to the reconciler, which runs every few seconds.
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

// interleaveAgents returns the tasks of all agents: the first task of each agent, then the second of each, and so on,
// so that workers run tasks of different agents at once. Deliveries of one agent would wait for each other: for the
// lock of the agent's row when they are recorded, and for the limit of calls per origin.
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

// arrivalAgents returns the distinct agents of arrivals, sorted as distinctAgents does. It omits those of refused jobs,
// which may be bytes that are no job and have no agent.
func arrivalAgents(in []arrival) []Agent {
	agents := make([]Agent, 0, len(in))
	for _, a := range in {
		if a.Refused == "" { // bytes that are not a job have no agent
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// distinctAgents sorts agents in place by chain, registry and id (as text), and returns them without duplicates.
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
