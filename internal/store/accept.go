package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// MaxAccept limits the jobs of one Accept call, because one transaction accepts all of them and locks all their agents.
const MaxAccept = 500

// Intake is one job to accept, with its sender.
type Intake struct {
	Job           job.Job
	SealedHeaders []byte // encrypted action.endpoint.headers of the job; nil: it has none
	Source        Source // the sender of the job
	// SameHeaders reports whether sealed, the encrypted headers of another job, decrypts to the same headers as
	// SealedHeaders. Only the caller has the key. If SameHeaders is nil, encrypted headers of two jobs always count as
	// different.
	SameHeaders func(sealed []byte) bool

	// Refused, if not empty, is the reason why the job is invalid, as a sentence. Accept then stores a rejected
	// delivery (invalid_job), because a job from the chain or from Redis has no caller that could get an error.
	Refused string
	// Filtered, if not empty, is a sentence about the filter of the default policy that skips the event. Accept then
	// stores a skipped delivery (filtered), unless the agent has filters of its own: then a worker's check decides. It
	// is set only for events that were read from the chain.
	Filtered string
	// Key, if not empty, replaces Job.Key() as the delivery's key. It is set for Refused jobs only: the key of the
	// event, or "invalid:<sha256>" if the event is unknown.
	Key string
	// Received, for a Refused job only, is the text that arrived, as JSON with masked secrets. Accept stores it as the
	// delivery's result. Nil: no result is stored.
	Received json.RawMessage

	AgentChange AgentChange // for an AgentUpdated read from the chain (a change of registration or owner): its details

	// Traceparent is the trace in which the job was sent (W3C Trace Context). A new delivery continues this trace. An
	// invalid value is ignored. An existing delivery keeps its trace.
	Traceparent string

	// Bulk marks the job as part of a backfill. Its delivery is dispatched after all other deliveries of its agent, and
	// its tasks go to the lane bulk. All jobs of one call must have the same Bulk. An existing delivery keeps its own.
	Bulk bool
}

// Verdict states how Accept handled one Intake.
type Verdict string

// The verdicts.
const (
	Accepted Verdict = "accepted" // a delivery was inserted, or an ended delivery was queued again
	Known    Verdict = "known"    // the key already has a delivery
	// Conflict: the key's delivery has another action. Or it has another event, and workers do not check on the chain
	// which event is real.
	Conflict  Verdict = "conflict"
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

// Accept stores at most MaxAccept jobs as deliveries, in one transaction. In the same transaction it dispatches
// deliveries of their agents, up to MaxDispatchedPerAgent per agent. out[i] is the answer to in[i]. The caller puts the
// returned tasks into Redis. Calling Accept again with the same jobs is harmless: it returns Known.
//
// A job that Postgres cannot store does not make the call fail. Accept stores it as a rejected delivery, like a Refused
// job.
func (s *Store) Accept(ctx context.Context, in []Intake) (out []Acceptance, tasks []Task, err error) {
	if len(in) > MaxAccept {
		return nil, nil, fmt.Errorf("store: at most %d jobs at once, got %d", MaxAccept, len(in))
	}
	if len(in) == 0 {
		return nil, nil, nil
	}
	ctx, end := s.StartCall(ctx, &err, "accept %d jobs", len(in))
	defer end()
	rows, err := newArrivals(in)
	if err != nil {
		return nil, nil, err
	}
	err = s.retryAccept(ctx, func() error {
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) (err error) {
			out, tasks, err = s.acceptIn(ctx, tx, rows)
			return err
		})
	})
	if err != nil {
		return nil, nil, err // nothing was committed, so nothing was dispatched
	}
	return out, tasks, nil
}

// retryAccept calls transact, which must run one whole transaction, until it succeeds or ctx has ended. If shouldRetry
// is true for the error, it repeats the call without limit. If missedConflict is true, it repeats the call at most
// maxMissed times. It returns any other error.
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

// errConcurrentUpdate is returned if a concurrent transaction has changed a delivery. The transaction that gets it is
// rolled back and retried (retryAccept).
var errConcurrentUpdate = errors.New("another transaction changed the delivery")

// shouldRetry reports whether err is errConcurrentUpdate or a deadlock that Postgres detected. Each transaction first
// locks the agents of its jobs, but that does not exclude these errors: two jobs with the same key can have different
// agents (if they name different identity registries), and a Refused job locks no agent. One of two such transactions
// always commits, so retrying ends.
func shouldRetry(err error) bool {
	var pe *pgconn.PgError
	const deadlockDetected = "40P01"
	return errors.Is(err, errConcurrentUpdate) || errors.As(err, &pe) && pe.Code == deadlockDetected
}

// maxMissed is how often retryAccept tries again after an error that missedConflict recognizes. An error that persists
// has another cause.
const maxMissed = 5

// missedConflict reports whether err is a unique violation in herald.history: ON CONFLICT (key) then overlooked
// the existing row with the key. This happens while another transaction updates that row: the row's old index entry is
// dead already, and the scan has passed the position of the new one. The insert then violates the primary key on id,
// which ON CONFLICT (key) does not cover. A retry finds the row.
func missedConflict(err error) bool {
	var pe *pgconn.PgError
	const uniqueViolation = "23505"
	return errors.As(err, &pe) && pe.Code == uniqueViolation && pe.TableName == "history"
}

// arrival is an Intake in the form in which Accept stores it.
type arrival struct {
	Intake
	key   string // of the delivery
	kind  string
	agent Agent
	raw   []byte // Job as JSON; nil for a Refused job, because it may contain secrets in plain text
	// readBy is the cursor of the chain follower that read the event from the chain. Nil: no chain follower read the
	// event, so its block is not remembered for reorgs.
	readBy *CursorKey
	read   bool // Job was read from the chain (by a chain follower or a worker's check), or is a retraction (retract)
}

// maxKeyBytes limits stored keys to a length that Postgres can index. Every valid key is shorter.
const maxKeyBytes = 1 << 10

// newArrivals calls newArrival for each Intake.
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

// newArrival returns the arrival of an Intake. If Postgres cannot store the job, newArrival sets Refused. An invalid
// traceparent is dropped. newArrival returns an error if the key is empty or the job cannot be encoded as JSON.
func newArrival(it Intake) (arrival, error) {
	a := arrival{Intake: it, key: storable.Text(cmp.Or(it.Key, it.Job.Key()), maxKeyBytes),
		kind: storable.Text(string(it.Job.Kind), storable.MaxName), agent: jobAgent(it.Job)}
	a.Refused, a.Filtered = storable.Text(it.Refused, storable.MaxError), storable.Text(it.Filtered, storable.MaxError)
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
		a.raw, a.SealedHeaders, a.Received = nil, nil, storable.JSON(a.Received, storable.MaxSide)
		a.agent.ChainID = min(a.agent.ChainID, math.MaxInt64)
	}
	return a, nil
}

// isAgentUpdate reports whether a is an AgentUpdated that is not Refused. Such a job only raises its agent's epoch; it
// becomes no delivery.
func (a arrival) isAgentUpdate() bool { return a.Job.Kind == job.KindAgentUpdated && a.Refused == "" }

// acceptIn locks the agents of any number of jobs in the transaction tx, and then accepts the jobs (acceptLocked).
func (s *Store) acceptIn(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	if err := s.LockAgents(ctx, tx, arrivalAgents(in)); err != nil {
		return nil, nil, err
	}
	return s.acceptLocked(ctx, tx, in)
}

// acceptLocked accepts any number of jobs, MaxAccept at a time, and dispatches from their agents' backlogs. tx has
// locked the agents. out[i] is the answer to in[i].
func (s *Store) acceptLocked(ctx context.Context, tx pgx.Tx,
	in []arrival) (out []Acceptance, tasks []Task, err error) {
	for part := range slices.Chunk(in, MaxAccept) {
		answers, more, err := s.acceptPart(ctx, tx, part)
		if err != nil {
			return nil, nil, err
		}
		out, tasks = append(out, answers...), append(tasks, more...)
	}
	return out, tasks, nil
}

// acceptPart accepts at most MaxAccept jobs, whose agents tx has locked. It raises the epochs of updated agents,
// inserts deliveries for new keys, and answers the jobs whose keys exist. Then it dispatches from the agents' backlogs.
func (s *Store) acceptPart(ctx context.Context, tx pgx.Tx, in []arrival) (out []Acceptance, tasks []Task, err error) {
	out = make([]Acceptance, len(in))
	byAgent := make(map[Agent][]Task)
	if err := s.raiseEpochs(ctx, tx, in, out); err != nil {
		return nil, nil, err
	}
	if err := s.insertNew(ctx, tx, in, out, byAgent); err != nil {
		return nil, nil, err
	}
	if err := s.answerKnownKeys(ctx, tx, in, out, byAgent); err != nil {
		return nil, nil, err
	}
	if err := s.dispatchInto(ctx, tx, listAgentsToDispatch(in, out, byAgent), byAgent); err != nil {
		return nil, nil, err
	}
	return out, interleaveAgents(byAgent), nil
}

// listAgentsToDispatch returns the distinct agents from whose backlogs acceptPart must dispatch. It omits an agent if
// no job can have added to its backlog: each of its jobs is Refused, is an AgentUpdated, or became a new delivery that
// waits, has a task, or was filtered. byAgent has the tasks that acceptPart has dispatched so far.
func listAgentsToDispatch(in []arrival, out []Acceptance, byAgent map[Agent][]Task) []Agent {
	isDispatched := make(map[uuid.UUID]bool, len(in))
	for _, dispatched := range byAgent {
		for _, t := range dispatched {
			isDispatched[t.ID] = true
		}
	}
	var agents []Agent
	for i, a := range in {
		isSettled := out[i].Verdict == Accepted &&
			(isDispatched[out[i].ID] || out[i].Status == Waiting || out[i].Status == Skipped)
		if a.Refused == "" && out[i].Verdict != Refreshed && !isSettled {
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// LockAgents locks the rows of agents until the transaction ends. It first inserts missing rows. It locks in one fixed
// order, so that two transactions do not deadlock.
func (s *Store) LockAgents(ctx context.Context, tx pgx.Tx, agents []Agent) error {
	chains, registries, ids := SplitAgents(agents)
	b := &pgx.Batch{}
	b.Queue(statements.Text("make_agents"), chains, registries, ids)
	b.Queue(statements.Text("lock_agents"), chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// SplitAgents returns the fields of agents as three parallel slices, for the array parameters of a statement.
func SplitAgents(agents []Agent) (chains []int64, registries, ids []string) {
	for _, a := range agents {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	return chains, registries, ids
}

// raiseEpochs handles the AgentUpdated jobs among the arrivals. It raises the epochs of their agents, stores transfers
// of ownership, and sets the answers of these jobs to Refreshed.
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

// insertNew inserts a delivery for each arrival whose answer is undecided and whose key has no delivery yet. It sets
// these answers to Accepted. The answer stays undecided if the key has a delivery, or if an earlier arrival has the
// same key. New tasks are added to byAgent.
func (s *Store) insertNew(ctx context.Context, tx pgx.Tx, in []arrival, out []Acceptance,
	byAgent map[Agent][]Task) error {
	var rows columns
	added := make(map[string]bool, len(in)) // by key
	for i, a := range in {
		if out[i].Verdict == undecided && !added[a.key] {
			added[a.key] = true
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
		if a.Refused != "" && a.Received != nil { // rare, so accept.sql has no argument for it
			kept.Queue(`UPDATE herald.history SET result = $2 WHERE id = $1`, id, a.Received)
		}
		delete(made, id) // a later arrival with the same key gets the answer Known
		out[i] = a.newAcceptance(id, row)
		if row.dispatch > 0 {
			byAgent[a.agent] = append(byAgent[a.agent], Task{ID: id, N: row.dispatch, Kind: a.kind, Bulk: a.Bulk})
		}
	}
	if kept.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, kept).Close()
}

// newAcceptance returns the answer Accepted for an arrival whose delivery was inserted. id and row describe that
// delivery. The status is Rejected for a Refused job, Skipped for a filtered one, Waiting if the delivery waits for
// another one (behind_earlier), and else Queued.
func (a arrival) newAcceptance(id uuid.UUID, row newRow) Acceptance {
	status := Queued
	switch {
	case a.Refused != "":
		status = Rejected
	case row.filtered:
		status = Skipped
	case row.behind:
		status = Waiting
	}
	return Acceptance{Verdict: Accepted, ID: id, Key: a.key, Status: status}
}

// columns has the arguments of accept.sql: parallel slices with one element per new delivery.
type columns struct {
	ids                  []uuid.UUID
	keys, kinds          []string
	chains               []int64
	registries, agents   []string
	orderKeys, orderSeqs []string
	jobs, headers        [][]byte
	refusals, filters    []*string
	bulks                []bool
	traceparents         []*string
	sources              []string
	trusts               []int
	bound                bool // arrival.read; it has the same value for all new deliveries
}

// appendArrival appends the values of one new delivery to the slices. The delivery has this id and the contents of a.
func (c *columns) appendArrival(a arrival, id uuid.UUID) {
	c.ids, c.keys, c.kinds = append(c.ids, id), append(c.keys, a.key), append(c.kinds, a.kind)
	c.chains = append(c.chains, int64(a.agent.ChainID))
	c.registries, c.agents = append(c.registries, a.agent.Registry), append(c.agents, a.agent.ID)
	c.orderKeys, c.orderSeqs = append(c.orderKeys, a.Job.OrderKey()), append(c.orderSeqs, fmt.Sprint(a.Job.OrderSeq()))
	c.jobs, c.headers, c.refusals = append(c.jobs, a.raw), append(c.headers, a.SealedHeaders),
		append(c.refusals, storable.OrNull(a.Refused))
	c.filters = append(c.filters, storable.OrNull(a.Filtered))
	c.bulks, c.traceparents = append(c.bulks, a.Bulk), append(c.traceparents, storable.OrNull(a.Traceparent))
	c.sources, c.trusts, c.bound = append(c.sources, a.Source.Name), append(c.trusts, int(a.Source.Trust)), a.read
}

// newRow is the state of a delivery that accept.sql has just inserted.
type newRow struct {
	dispatch int  // dispatch counter: 1 if the delivery was dispatched, else 0
	behind   bool // the delivery waits for another one (behind_earlier)
	filtered bool // a filter of the default policy ended the delivery
}

// insertColumns inserts deliveries. It dispatches those that need not wait, if their agent has no older backlog and
// fewer than MaxDispatchedPerAgent dispatched deliveries. It inserts nothing for a key that already has a delivery. It
// returns the inserted rows by id.
func (s *Store) insertColumns(ctx context.Context, tx pgx.Tx, c columns) (map[uuid.UUID]newRow, error) {
	rows, _ := tx.Query(ctx, statements.Text("accept"), statements.Named("accept").Args(pgx.NamedArgs{
		"ids": c.ids, "keys": c.keys, "kinds": c.kinds, "chain_ids": c.chains, "registries": c.registries,
		"agent_ids":  c.agents,
		"order_keys": c.orderKeys, "order_seqs": c.orderSeqs, "jobs": c.jobs, "sealed_headers": c.headers,
		"errors": c.refusals, "filters": c.filters, "bulks": c.bulks, "traceparents": c.traceparents,
		"sources": c.sources, "trusts": c.trusts, "bound": c.bound,
		"max_dispatched": MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent, "order": s.defaultOrder()})...)
	made := make(map[uuid.UUID]newRow, len(c.ids))
	var id uuid.UUID
	var n newRow
	_, err := pgx.ForEachRow(rows, []any{&id, &n.dispatch, &n.behind, &n.filtered}, func() error {
		made[id] = n
		return nil
	})
	return made, err
}

// holder is an existing delivery, for the answer to a job that arrives with the same key.
type holder struct {
	id       uuid.UUID
	status   Status
	reason   outcome.Reason
	raw      []byte // the stored job; nil: retention deleted it, or the job was Refused
	sealed   []byte // the encrypted headers of the job's endpoint
	called   bool   // an attempt that called the agent was recorded
	maybe    bool   // the agent was called, or an attempt without a recorded outcome may have called it
	bound    bool   // the stored job was read from the chain
	verified bool   // workers check the event before the call
	source   Source // the sender of the job whose action (tool, endpoint, arguments) is used
	gone     bool   // a reorg removed the event, and the chain follower has not found it again (markGone)
}

// isNotFound reports whether the delivery was rejected (event_not_found), because a check did not find its event on the
// chain.
func (h holder) isNotFound() bool { return h.status == Rejected && h.reason == outcome.EventNotFound }

// mayReopen reports whether the delivery ended because its event was missing: a check did not find the event, or a
// reorg removed it. The delivery can then be queued again (reopenDelivery).
func (h holder) mayReopen() bool {
	return h.isNotFound() || h.status == Cancelled && h.reason == outcome.Reorg
}

// isFiltered reports whether a filter of the agent's policy ended the delivery.
func (h holder) isFiltered() bool { return h.status == Skipped && h.reason == outcome.Filtered }

// answerKnownKeys sets the answers that insertNew left undecided, because their keys have deliveries. An answer becomes
// Known or Conflict. It becomes Accepted if the delivery was queued again, or if the key was given to a new delivery
// (displaceHolder). New tasks are added to byAgent. It returns errConcurrentUpdate if a key no longer has a delivery.
func (s *Store) answerKnownKeys(ctx context.Context, tx pgx.Tx, in []arrival, out []Acceptance,
	byAgent map[Agent][]Task) error {
	var keys []string
	for i, a := range in {
		if out[i].Verdict == undecided {
			keys = append(keys, a.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	holders, err := s.readHolders(ctx, tx,
		"herald.key_hash(h.key) = ANY(ARRAY(SELECT herald.key_hash(k) FROM unnest($1::text[]) k))", keys)
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
		if !ok { // an earlier arrival of this batch changed the delivery
			changed, err := s.readHolders(ctx, tx, "herald.key_hash(h.key) = herald.key_hash($1)", a.key)
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
		if out[i].Verdict == Accepted {
			delete(holders, a.key)
		}
	}
	return nil
}

// readHolders reads the deliveries that an SQL condition selects, and returns them as a map from the key of each. In
// the condition, h is the delivery's row of herald.history, and $1 is arg.
func (s *Store) readHolders(ctx context.Context, tx pgx.Tx, condition string, arg any) (map[string]holder, error) {
	rows, _ := tx.Query(ctx, statements.Text("known")+" WHERE "+condition, arg)
	found := make(map[string]holder)
	var key string
	var h holder
	_, err := pgx.ForEachRow(rows, []any{&key, &h.id, &h.status, &h.reason, &h.raw, &h.sealed, &h.called,
		&h.maybe, &h.bound, &h.verified, &h.source.Name, &h.source.Trust}, func() error {
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
//     First: the delivery ended because its job was invalid or its event was missing (mayReopen). Second: the agent was
//     not called, or the arrival was read from the chain.
//   - The arrival was read from the chain: answerRead.
//   - Workers do not check the delivery's event: answerUnverified.
//   - The delivery is a retraction, whose job this package made: nothing changes.
//   - Otherwise: answerHint.
func (s *Store) answerKnownKey(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	byAgent map[Agent][]Task) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if a.Refused != "" {
		return out, nil
	}
	var known, brought job.Job
	// a.raw, not a.Job: known was changed by storable.Repair before it was stored, so brought must be changed too.
	if err := json.Unmarshal(a.raw, &brought); err != nil {
		return out, fmt.Errorf("read back the job of %s: %w", a.key, err)
	}
	isReadable := h.raw != nil && json.Unmarshal(h.raw, &known) == nil
	isInvalid := h.status == Rejected && h.reason == outcome.InvalidJob
	switch {
	case !isReadable && (h.mayReopen() || isInvalid) && (!h.called || a.read):
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
// known is h's stored job. If h ended because its event was missing (mayReopen) and its agent was not called, h is
// queued again with the arriving job. Otherwise h keeps its job, and the answer is Conflict if the two jobs differ in
// the event's content, the action or the headers.
func (s *Store) answerUnverified(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	brought, known job.Job) (Acceptance, error) {
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

// answerHint answers a job that a sender enqueued (brought), if workers check the event of h, the delivery with the
// same key. known is h's stored job. A hint is a job that may name the right position of the event (Hint). The first
// case that applies decides:
//   - h ended because its event was missing (mayReopen), and its agent was not called: the new job becomes a hint, and
//     h is queued again. Exception: if h was rejected (event_not_found) and AddHint rejects the hint, h stays rejected.
//   - h has ended for another reason, or its agent was or may have been called. If h's job was read from the chain
//     (bound) and the new job names another event, the new job becomes a hint, and a worker reads h's event from the
//     chain again (Review). Otherwise nothing changes.
//   - The new job differs from the stored one in the event or its position, or its sender has a higher trust than h's:
//     the new job becomes a hint.
//
// In each case, AddHint may reject the hint. The answer is Accepted if h was queued again. Otherwise it is Conflict if
// a hint of a sender with the same Trust has another action than the new job, or other headers. In all other cases it
// is Known.
func (s *Store) answerHint(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	brought, known job.Job) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	if brought.EventSum() != known.EventSum() || a.Source.Trust > h.source.Trust {
		const lock = `SELECT FROM herald.history WHERE herald.key_hash(key) = herald.key_hash($1) FOR UPDATE`
		if _, err := tx.Exec(ctx, lock, a.key); err != nil {
			return out, fmt.Errorf("lock %s: %w", a.key, err)
		}
		locked, err := s.readHolders(ctx, tx, "herald.key_hash(h.key) = herald.key_hash($1)", a.key)
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

// reopenDelivery queues the ended delivery h again with the arrival's job, and returns Accepted. h's event has returned
// to the chain, or may be at the position that the new job names. If h is a feedback whose revocation was skipped
// because the feedback was never delivered, the revocation is queued again too. The callers ensure that h's agent was
// not called or that the new job was read from the chain. reopenDelivery returns errConcurrentUpdate if another
// transaction has changed h.
func (s *Store) reopenDelivery(ctx context.Context, tx pgx.Tx, a arrival, h holder) (Acceptance, error) {
	out := Acceptance{Verdict: Known, ID: h.id, Key: a.key, Status: h.status}
	args := a.eventArgs(h.id)
	args["key"], args["read"] = a.key, a.read
	err := tx.QueryRow(ctx, statements.Text("reopen"), statements.Named("reopen").Args(args)...).Scan(&out.ID)
	if err != nil { // no row: another transaction changed h, so retryAccept must retry
		return out, fmt.Errorf("queue %s anew: %w", a.key, postgres.NoRows(err, errConcurrentUpdate))
	}
	if _, err := tx.Exec(ctx, statements.Text("revive_revocations"), []uuid.UUID{h.id}); err != nil {
		return out, fmt.Errorf("queue the revocation of %s anew: %w", a.key, err)
	}
	out.Verdict, out.Status = Accepted, Queued
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
// job. It returns the answer for the new delivery. h gets another key, and is cancelled (reorg) if it is queued,
// waiting or held. If h's agent was or may have been called with a feedback, a retraction informs that agent
// (retractDisplaced). New tasks are added to byAgent.
func (s *Store) displaceHolder(ctx context.Context, tx pgx.Tx, a arrival, h holder,
	byAgent map[Agent][]Task) (out Acceptance, err error) {
	var moved string
	err = postgres.NoRows(tx.QueryRow(ctx, statements.Text("displace"), h.id, a.key).Scan(&moved), errConcurrentUpdate)
	if err != nil {
		return out, fmt.Errorf("free the key %s: %w", a.key, err)
	}
	if h.maybe {
		if err := s.retractDisplaced(ctx, tx, h, byAgent); err != nil {
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
		byAgent[a.agent] = append(byAgent[a.agent], Task{ID: out.ID, N: fresh.dispatch, Kind: a.kind, Bulk: a.Bulk})
	}
	return out, nil
}

// dispatchAgents dispatches the next deliveries from the backlogs of agents, up to MaxDispatchedPerAgent per agent. It
// returns their tasks in the order of interleaveAgents. tx has locked the agents.
func (s *Store) dispatchAgents(ctx context.Context, tx pgx.Tx, agents []Agent) ([]Task, error) {
	byAgent := make(map[Agent][]Task, len(agents))
	if err := s.dispatchInto(ctx, tx, agents, byAgent); err != nil {
		return nil, err
	}
	return interleaveAgents(byAgent), nil
}

// maxDispatchRounds limits how often one dispatchInto runs dispatch.sql. One run reads at most MaxDispatchedPerAgent
// deliveries of each agent.
const maxDispatchRounds = 32

// dispatchInto is dispatchAgents, but adds the tasks to byAgent instead of returning them.
func (s *Store) dispatchInto(ctx context.Context, tx pgx.Tx, agents []Agent, byAgent map[Agent][]Task) error {
	if len(agents) == 0 {
		return nil
	}
	chains, registries, ids := SplitAgents(agents)
	// dispatch.sql takes a delivery that must wait for another one out of the backlog without dispatching it. The loop
	// then runs again for the deliveries after it. If a long backlog of one ordering key needs more rounds, which is
	// rare, the reconciler continues a few seconds later.
	again := true
	for round := 0; again && round < maxDispatchRounds; round++ {
		rows, _ := tx.Query(ctx, statements.Text("dispatch"),
			statements.Named("dispatch").Args(dispatchArgs(chains, registries, ids, nil, nil))...)
		behind, err := readDispatched(rows, func(t Task, a Agent) error {
			byAgent[a] = append(byAgent[a], t)
			return nil
		})
		if err != nil {
			return err
		}
		again = behind > 0
	}
	return nil
}

// dispatchArgs returns the arguments of dispatch.sql. chains, registries and agents identify the agents. ids and
// claimNos are nil, or have one claim per agent: its delivery id and its claim number. The statement then dispatches
// for an agent only if the same transaction has recorded the outcome of the agent's claim.
func dispatchArgs(chains []int64, registries, agents []string, ids []uuid.UUID, claimNos []int64) pgx.NamedArgs {
	return pgx.NamedArgs{"chains": chains, "registries": registries, "agents": agents, "ids": encodeIDs(ids),
		"claim_nos": claimNos, "max_dispatched": MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent}
}

// readDispatched reads the rows of dispatch.sql. It calls add for each dispatched task and its agent. It returns the
// number of deliveries that left the backlog to wait for others (behind).
func readDispatched(rows pgx.Rows, add func(Task, Agent) error) (behind int, err error) {
	var t Task
	var a Agent
	var left bool
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &a.ChainID, &a.Registry, &a.ID,
		&left}, func() error {
		if left {
			behind++
			return nil
		}
		return add(t, a)
	})
	return behind, err
}

// interleaveAgents returns the tasks of all agents in this order: the first task of each agent, then the second of
// each, and so on. So workers run tasks of different agents at the same time. Tasks of one agent would wait for each
// other: for the lock of the agent's row when they are recorded, and for the permits of their origin.
func interleaveAgents(byAgent map[Agent][]Task) (tasks []Task) {
	agents := distinctAgents(slices.Collect(maps.Keys(byAgent)))
	for nth := range MaxDispatchedPerAgent {
		for _, a := range agents {
			if nth < len(byAgent[a]) {
				tasks = append(tasks, byAgent[a][nth])
			}
		}
	}
	return tasks
}

// arrivalAgents returns the distinct agents of the arrivals, in the order of distinctAgents. It omits Refused jobs,
// because they may name no agent.
func arrivalAgents(in []arrival) []Agent {
	agents := make([]Agent, 0, len(in))
	for _, a := range in {
		if a.Refused == "" {
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

// AgentChange has the details of an AgentUpdated event that the chain follower read.
type AgentChange struct {
	// LastID is the last id of a range of agents that changed (ERC-4906, BatchMetadataUpdate). The job's agent is the
	// first. Agents of the range without a row in herald.agents are ignored. Nil: only the job's agent changed.
	LastID *big.Int
	// From and To are the old and the new owner, if the agent was transferred (ERC-721, Transfer); otherwise both are
	// zero.
	From, To common.Address
}

// queueAgentChange queues in b the statements for an AgentUpdated event. They raise the epochs of the changed agents,
// so that workers resolve these agents again, and store a transfer to another owner.
func queueAgentChange(b *pgx.Batch, a arrival) {
	switch c := a.AgentChange; {
	case c.LastID != nil:
		b.Queue(statements.Text("raise_epochs"), a.agent.ChainID, a.agent.Registry, a.agent.ID, c.LastID.String())
		return
	case c.To != (common.Address{}) && a.Job.LogIndex != nil:
		note := statements.Named("note_transfer")
		b.Queue(note.Text, note.Args(pgx.NamedArgs{"chain_id": a.agent.ChainID, "registry": a.agent.Registry,
			"agent_id": a.agent.ID, "transaction_hash": a.Job.TransactionHash.Hex(),
			"log_index": int64(*a.Job.LogIndex), "block_number": a.Job.BlockNumber, "at": a.Job.Timestamp,
			"from": strings.ToLower(c.From.Hex()), "to": strings.ToLower(c.To.Hex())})...)
	}
	b.Queue(statements.Text("raise_epoch"), a.agent.ChainID, a.agent.Registry, a.agent.ID)
}

// WorkerGone is how long a worker counts as running after its last report (ReportVerified, records.ReportWorker).
const WorkerGone = time.Minute

// ReportVerified stores the ids of the chains whose events a running worker verifies. Accept reads them, because it
// cannot ask the chain itself. The rows stay after the worker has stopped. A worker that does not verify a chain
// deletes the chain's row, unless another worker has reported the chain within WorkerGone.
func (s *Store) ReportVerified(ctx context.Context, chains []uint64) (err error) {
	ctx, end := s.StartCall(ctx, &err, "store which chains are verified")
	defer end()
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO herald.verified_chains (chain_id) SELECT unnest($1::bigint[])
		ON CONFLICT (chain_id) DO UPDATE SET seen_at = now()`, chains)
	b.Queue(`DELETE FROM herald.verified_chains
		WHERE chain_id <> ALL ($1::bigint[]) AND seen_at < now() - make_interval(secs => $2)`,
		chains, WorkerGone.Seconds())
	return s.Conns.SendBatch(ctx, b).Close()
}
