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
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// MaxAccept limits the jobs of one Accept call. All of them are accepted in one transaction, which locks all their
// agents.
const MaxAccept = 500

// Intake is a job that Accept must store as a delivery, with its origin.
type Intake struct {
	Job           job.Job
	SealedHeaders []byte // the job's action.endpoint.headers, encrypted; nil: the job has none
	Source        Source // the sender of the job
	// SameHeaders reports whether sealed, the encrypted headers of another job, decrypts to the same headers as
	// SealedHeaders. If SameHeaders is nil, headers of two jobs always count as different.
	SameHeaders func(sealed []byte) bool

	// Refused, if not empty, is the reason why the job is invalid, as a sentence. Accept then stores it as a rejected
	// delivery (invalid_job), because jobs from the chain and from Redis have no caller that could get an error.
	Refused string
	// Key, if not empty, is the delivery's key instead of Job.Key(). It is set for Refused jobs only: the key of the
	// event, or "invalid:<sha256>" if the key is unknown.
	Key string
	// Received is the text that arrived, as JSON with masked secrets, for a Refused job only. It is stored as the
	// delivery's result. Nil: nothing is stored.
	Received json.RawMessage

	AgentChange AgentChange // details of the event, for an AgentUpdated that was read from the chain

	// Traceparent is the trace in which the job was sent (W3C Trace Context); a new delivery continues it. An invalid
	// value is ignored. If the key already has a delivery, that one's trace stays.
	Traceparent string

	// Bulk marks the job as part of a backfill. Its delivery is dispatched after all other deliveries of its agent, and
	// its tasks go to the lane bulk. Bulk must be equal for all jobs of one call. If the key already has a delivery,
	// that one's Bulk stays.
	Bulk bool
}

// Verdict states what Accept did with one Intake.
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // a delivery was inserted, or an ended one was queued again
	Known     Verdict = "known"     // the key already has a delivery
	Conflict  Verdict = "conflict"  // as Known, but with another action or, if unverified, another event
	Refreshed Verdict = "refreshed" // AgentUpdated: the agent's epoch was raised; no delivery was inserted
	undecided Verdict = ""          // the Intake has no answer yet
)

// Acceptance is the answer of Accept to one Intake. For Known and Conflict, ID and Status are those of the existing
// delivery. For Refreshed, only Verdict is set.
type Acceptance struct {
	Verdict Verdict
	ID      uuid.UUID
	Key     string
	Field   string   // for Conflict: the first field of the event that differs, or "action"
	Stored  string   // for Conflict: the value of Field in the delivery; "" for "action"
	Differs []string // for Known: the job's fields that differ from the event that was read from the chain
	Status  Status   // of the delivery with ID
}

// Accept stores at most MaxAccept jobs as deliveries, in one transaction, and dispatches deliveries of their agents, up
// to MaxDispatchedPerAgent per agent. out[i] is the answer to in[i]. The caller puts the returned tasks into Redis. A
// repeated call with the same jobs is harmless: it returns Known.
//
// A job that Postgres cannot store does not make the call fail: it is stored as a rejected delivery, as a Refused job
// is.
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

// retryAccept calls transact, which must run one whole transaction, and calls it again if it failed because of a
// concurrent transaction: without limit after an error for which shouldRetry is true, and maxMissed times after
// missedConflict. It stops when ctx has ended.
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

// errConcurrentUpdate is returned by a transaction that found a delivery changed by a concurrent one. Its caller rolls
// back and retries (retryAccept).
var errConcurrentUpdate = errors.New("another transaction changed the delivery")

// shouldRetry reports whether err is errConcurrentUpdate or a deadlock that Postgres detected. Both can occur although
// the agents are locked: a concurrent transaction may have a job with the same key but another identity registry, or a
// Refused job, whose agent is not locked. One of the two transactions always commits, so retrying ends.
func shouldRetry(err error) bool {
	var pe *pgconn.PgError
	const deadlockDetected = "40P01"
	return errors.Is(err, errConcurrentUpdate) || errors.As(err, &pe) && pe.Code == deadlockDetected
}

// maxMissed limits the retries of retryAccept after missedConflict. If the error persists, it has another cause.
const maxMissed = 5

// missedConflict reports whether err is a unique violation in history: ON CONFLICT (key) overlooked the existing row
// with the key. Its index scan can miss a row while another transaction updates it: the old index entry is already
// dead, and the new one is before the scan's position. The insert then violates the primary key on id, which
// ON CONFLICT (key) does not cover. A retry finds the row.
func missedConflict(err error) bool {
	var pe *pgconn.PgError
	const uniqueViolation = "23505"
	return errors.As(err, &pe) && pe.Code == uniqueViolation && pe.TableName == "history"
}

// arrival is an Intake in the form in which it is stored.
type arrival struct {
	Intake
	key   string // of the delivery
	kind  string
	agent Agent
	raw   []byte // Job as JSON; nil for a Refused job, because it may contain secrets in plain text
	// readBy is the cursor of the chain follower that read the event. Nil: no chain follower read it, so the event's
	// block is not remembered for reorgs.
	readBy *CursorKey
	read   bool // the chain follower or a check read the event from the chain, or this package made the job (retract)
}

// maxKeyBytes limits the stored keys. Every valid key is shorter, and Postgres can index keys of this length.
const maxKeyBytes = 1 << 10

// newArrivals returns newArrival of each Intake.
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

// newArrival returns it in the form in which it is stored. If Postgres cannot store the job, the arrival is a Refused
// one. An invalid traceparent is dropped. It returns an error if the key is empty or the job cannot be encoded as JSON.
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

// isAgentUpdate reports whether a is an AgentUpdated that is not Refused: it raises its agent's epoch and becomes no
// delivery.
func (a arrival) isAgentUpdate() bool { return a.Job.Kind == job.KindAgentUpdated && a.Refused == "" }

// acceptIn accepts any number of jobs within the transaction tx. It locks the jobs' agents and calls acceptLocked.
func (s *Store) acceptIn(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	if err := s.lockAgents(ctx, tx, arrivalAgents(in)); err != nil {
		return nil, nil, err
	}
	return s.acceptLocked(ctx, tx, in)
}

// acceptLocked accepts any number of jobs whose agents tx has locked, MaxAccept at a time, and dispatches from their
// agents' backlogs. out[i] is the answer to in[i].
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

// acceptPart accepts at most MaxAccept jobs whose agents tx has locked. It raises the epochs of updated agents, inserts
// deliveries for new keys, answers the jobs with known keys, and dispatches from the backlogs of the jobs' agents.
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

// listAgentsBehind returns the distinct agents from whose backlogs acceptPart must dispatch, because they may contain
// deliveries to dispatch. These are the agents of all jobs except Refused ones, AgentUpdated ones, and those whose new
// delivery is waiting or already has a task. lines has the tasks that acceptPart has dispatched so far, by agent.
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

// lockAgents locks the rows of agents until the transaction ends, and inserts missing ones first. The statement locks
// in one fixed order, so that two transactions do not deadlock.
func (s *Store) lockAgents(ctx context.Context, tx pgx.Tx, agents []Agent) error {
	chains, registries, ids := splitAgents(agents)
	b := &pgx.Batch{}
	b.Queue(statement("make_agents"), chains, registries, ids)
	b.Queue(statement("lock_agents"), chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// splitAgents returns the fields of agents as three parallel slices, for the array parameters of a statement.
func splitAgents(agents []Agent) (chains []int64, registries, ids []string) {
	for _, a := range agents {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	return chains, registries, ids
}

// raiseEpochs raises the epochs of the agents that the AgentUpdated jobs of in name, stores their transfers of
// ownership, and sets the answers of these jobs in out to Refreshed.
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

// insertNew inserts a delivery for each arrival whose answer is undecided (out[i].Verdict) and whose key has no
// delivery. It sets that answer to Accepted. If the insert dispatched the delivery, it adds the task to lines, the
// tasks by agent. The other answers stay undecided: those for keys that have a delivery, and of two arrivals with one
// key the answer of the second.
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
			kept.Queue(`UPDATE herald.history SET result = $2 WHERE id = $1`, id, a.Received)
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

// newAcceptance returns the answer Accepted for an arrival whose delivery id was inserted as row. The status is
// Rejected for a Refused job, Waiting if the delivery waits for another one of its ordering key, and Queued otherwise.
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

// columns has the arguments of accept.sql: parallel slices with one element per delivery to insert.
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
	bound                bool // arrival.read, which is equal for all jobs of a statement
}

// appendArrival appends the values of a delivery with this id for a.
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

// newRow is the state of a delivery that accept.sql has just inserted.
type newRow struct {
	dispatch int  // dispatch counter: 1 if the delivery was dispatched, else 0
	behind   bool // the delivery waits for another one (behind_earlier)
}

// insertColumns inserts deliveries, and dispatches those for which their agents have fewer than MaxDispatchedPerAgent
// dispatched. It skips keys that already have a delivery. It returns the inserted rows by id.
func (s *Store) insertColumns(ctx context.Context, tx pgx.Tx, c columns) (map[uuid.UUID]newRow, error) {
	rows, _ := tx.Query(ctx, statement("accept"), namedStatement("accept").args(pgx.NamedArgs{
		"ids": c.ids, "keys": c.keys, "kinds": c.kinds, "chain_ids": c.chains, "registries": c.registries,
		"agent_ids":  c.agents,
		"order_keys": c.orderKeys, "order_seqs": c.orderSeqs, "jobs": c.jobs, "sealed_headers": c.headers,
		"errors": c.refusals, "bulks": c.bulks, "traceparents": c.traceparents, "sources": c.sources, "trusts": c.trusts, "bound": c.bound,
		"max_dispatched": MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent, "strict": s.strict})...)
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
	reason   outcome.Reason
	raw      []byte // the stored job; nil: retention deleted it, or it was Refused
	sealed   []byte // the encrypted headers of the job's endpoint
	called   bool   // Herald recorded a call of the agent
	maybe    bool   // called is set, or an attempt without an outcome may have called the agent
	bound    bool   // the stored job was read from the chain
	verified bool   // workers check the event before the call
	source   Source // the sender of the job's action
	gone     bool   // the chain follower found that a reorg removed the event (markGone)
}

// isNotFound reports whether the delivery was rejected because a check did not find its event on the chain
// (event_not_found).
func (h holder) isNotFound() bool { return h.status == Rejected && h.reason == outcome.EventNotFound }

// mayReopen reports whether the delivery ended because its event was not found, or because a reorg removed it. It can
// then be queued again, by another job with its key or when the event is read from the chain.
func (h holder) mayReopen() bool {
	return h.isNotFound() || h.status == Cancelled && h.reason == outcome.Reorg
}

// answerKnownKeys answers the arrivals whose answers are undecided (out[i].Verdict). Their keys have deliveries. It
// sets each answer in out to Known or Conflict, or to Accepted if the delivery was queued again or the key was given to
// a new delivery (displaceHolder). It adds new tasks to lines, by agent. It returns errConcurrentUpdate if a key no
// longer has a delivery.
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

// readHolders reads the deliveries that match condition, an SQL expression in which $1 is arg. It returns them by key.
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

// answerKnownKey answers the job a, whose key has the delivery h (see answerKnownKeys). If a is Refused, the answer is
// Known and nothing changes. It calls answerRead if a was read from the chain, answerUnverified if workers do not check
// h's event, and otherwise answerHint. But in the last case nothing changes if h is a retraction, because this package
// made its job.
//
// If h's stored job cannot be parsed, it calls reopenDelivery if h ended because its event was missing (mayReopen) or
// its job was invalid, provided that h's agent was not called or a was read from the chain. Otherwise nothing changes.
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
	isInvalid := h.status == Rejected && h.reason == outcome.InvalidJob
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

// answerUnverified answers a job (brought) whose key has the delivery h with the stored job known, if workers do not
// check h's event. If h ended because its event was missing (mayReopen) and its agent was not called, it queues h again
// with brought. Otherwise h keeps known, and the answer is Conflict if the event's content, the action or the headers
// differ.
func (s *Store) answerUnverified(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	field, differs := brought.Conflict(known)
	switch {
	case h.mayReopen() && !h.called:
		return s.reopenDelivery(ctx, tx, a, h)
	case differs:
		out.Verdict, out.Field, out.Stored = Conflict, field, known.ContentValue(field)
	case brought.ActionSum() != known.ActionSum() || !sameHeaders(a.SealedHeaders, h.sealed, a.SameHeaders):
		out.Verdict, out.Field = Conflict, "action"
	}
	return out, nil
}

// answerHint answers a job (brought) that a sender enqueued, whose key has the delivery h with the stored job known, if
// workers check h's event. The first case that applies decides the effect:
//   - h ended because its event was missing (mayReopen), and its agent was not called: brought is stored as a hint and
//     h is queued again. But if h's event was not found and AddHint does not add the hint, h stays as it is.
//   - h has ended otherwise, or its agent was or may have been called: if h is bound and brought names another event
//     than known, brought is stored as a hint that schedules a Review.
//   - brought differs from known in the event or its position, or its sender has a higher trust than h's: brought is
//     stored as a hint.
//
// In each case, no hint is stored if AddHint does not add it. The answer is Accepted if h was queued again. Otherwise
// it is Conflict if a hint of equal trust has another action or other headers, and else Known.
func (s *Store) answerHint(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.EventSum() != known.EventSum() || a.Source.Trust > h.source.Trust {
		if _, err := tx.Exec(ctx, `SELECT FROM herald.history WHERE key = $1 FOR UPDATE`, a.key); err != nil {
			return out, fmt.Errorf("lock %s: %w", a.key, err)
		}
		locked, err := s.readHolders(ctx, tx, "key = $1", a.key)
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
// may be at the position that a names. If h is a feedback, it also queues its revocation again, if that was skipped
// because the feedback was never delivered. The answer is Accepted. Its callers make sure that h's agent was not called
// or that a was read from the chain. It returns errConcurrentUpdate if another transaction has changed h.
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

// eventArgs returns the arguments that reopen.sql and read_event.sql have in common: both replace the job of the
// delivery id by the job of a.
func (a arrival) eventArgs(id uuid.UUID) pgx.NamedArgs {
	return pgx.NamedArgs{"delivery_id": id, "job": a.raw, "sealed_headers": a.SealedHeaders, "source": a.Source.Name,
		"trust": int(a.Source.Trust), "registry": a.agent.Registry, "agent_id": a.agent.ID, "order_key": a.Job.OrderKey(),
		"order_seq": fmt.Sprint(a.Job.OrderSeq())}
}

// displaceHolder gives the key of the delivery h, whose event is not on the chain, to a new delivery for the arriving
// job a, and returns the answer for the new one. h gets another key, and is cancelled (reorg) if it is queued, waiting
// or held. If h is a feedback whose job is still stored, and h's agent was or may have been called, a retraction
// informs that agent. New tasks are added to lines, by agent.
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

// dispatchAgents dispatches the next deliveries from the backlogs of agents, up to MaxDispatchedPerAgent per agent. It
// returns their tasks, those of different agents in turn (interleaveAgents). tx has locked the agents.
func (s *Store) dispatchAgents(ctx context.Context, tx pgx.Tx, agents []Agent) ([]Task, error) {
	lines := make(map[Agent][]Task, len(agents))
	if err := s.dispatchInto(ctx, tx, agents, lines); err != nil {
		return nil, err
	}
	return interleaveAgents(lines), nil
}

// maxDispatchRounds limits how often one dispatchInto runs its statement. One run reads at most MaxDispatchedPerAgent
// deliveries of each agent.
const maxDispatchRounds = 32

// dispatchInto is dispatchAgents, but it adds the tasks to lines, by agent, instead of returning them.
func (s *Store) dispatchInto(ctx context.Context, tx pgx.Tx, agents []Agent, lines map[Agent][]Task) error {
	if len(agents) == 0 {
		return nil
	}
	chains, registries, ids := splitAgents(agents)
	// A delivery that leaves the backlog to wait for another one is not dispatched, so the loop runs again. The rest of
	// a long backlog of one ordering key, which is rare, is left to the reconciler, which runs every few seconds.
	again := true
	for round := 0; again && round < maxDispatchRounds; round++ {
		rows, _ := tx.Query(ctx, statement("dispatch"), namedStatement("dispatch").args(dispatchArgs(chains, registries, ids, nil, nil))...)
		behind, err := readDispatched(rows, func(t Task, a Agent) error {
			lines[a] = append(lines[a], t)
			return nil
		})
		if err != nil {
			return err
		}
		again = behind > 0
	}
	return nil
}

// dispatchArgs returns the arguments of dispatch.sql. chains, registries and agents identify the agents. If ids and
// claimNos are not nil, they name one claim per agent: the statement dispatches for an agent only if the same
// transaction recorded an outcome for that claim.
func dispatchArgs(chains []int64, registries, agents []string, ids []uuid.UUID, claimNos []int64) pgx.NamedArgs {
	return pgx.NamedArgs{"chains": chains, "registries": registries, "agents": agents, "ids": ids, "claim_nos": claimNos,
		"max_dispatched": MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent}
}

// readDispatched reads the result of dispatch.sql. It calls add for each dispatched task and its agent, and returns the
// number of deliveries that left the backlog to wait for others (behind).
func readDispatched(rows pgx.Rows, add func(Task, Agent) error) (behind int, err error) {
	var t Task
	var a Agent
	var left bool
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &a.ChainID, &a.Registry, &a.ID, &left}, func() error {
		if left {
			behind++
			return nil
		}
		return add(t, a)
	})
	return behind, err
}

// interleaveAgents returns the tasks of all agents in this order: the first task of each agent, then the second of
// each, and so on. So workers run tasks of different agents at once. Deliveries of one agent would wait for each other:
// for the lock of the agent's row when they are recorded, and for the limit of calls per origin.
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

// arrivalAgents returns the distinct agents of in, sorted as by distinctAgents. It omits those of Refused jobs, which
// may be bytes that are not a job.
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

// jobAgent returns the agent that a job names. A job without an agent id gets the id "0".
func jobAgent(j job.Job) Agent {
	id := "0"
	if j.AgentID != nil {
		id = j.AgentID.String()
	}
	return Agent{ChainID: j.ChainID, Registry: strings.ToLower(j.IdentityRegistry.Hex()), ID: id}
}
