package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Accept stores at most MaxAccept jobs as deliveries, in one transaction. In the same transaction it dispatches
// deliveries of their agents, up to MaxDispatchedPerAgent per agent. out[i] is the answer to in[i]. The caller puts the
// returned tasks into Redis. Calling Accept again with the same jobs is harmless: it returns Known.
//
// A job that Postgres cannot store does not make the call fail. Accept stores it as rejected, like a Refused job.
func (s *Store) Accept(ctx context.Context,
	in []ledger.Intake) (out []ledger.Acceptance, tasks []ledger.Task, err error) {
	if len(in) > ledger.MaxAccept {
		return nil, nil, fmt.Errorf("store: at most %d jobs at once, got %d", ledger.MaxAccept, len(in))
	}
	if len(in) == 0 {
		return nil, nil, nil
	}
	ctx, end := s.StartCall(ctx, &err, "accept jobs (%d)", len(in))
	defer end()
	rows, err := newArrivals(in)
	if err != nil {
		return nil, nil, err
	}
	err = s.retryTransaction(ctx, func() error {
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) (err error) {
			if err := s.LockAgents(ctx, tx, arrivalAgents(rows)); err != nil {
				return err
			}
			out, tasks, err = s.acceptLocked(ctx, tx, rows)
			return err
		})
	})
	if err != nil {
		return nil, nil, err // nothing was committed, so nothing was dispatched
	}
	return out, tasks, nil
}

// undecided is the verdict of an Intake that has no answer yet.
const undecided ledger.Verdict = ""

// retryTransaction calls transact, which must run one whole transaction, until it succeeds or ctx has ended. If
// shouldRetry is true for the error, it repeats the call without limit. If missedConflict is true, it repeats the call
// at most maxMissed times. It returns any other error.
func (s *Store) retryTransaction(ctx context.Context, transact func() error) error {
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
// rolled back and retried (retryTransaction).
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

// maxMissed is how often retryTransaction tries again after an error that missedConflict recognizes. An error that
// persists has another cause.
const maxMissed = 5

// missedConflict reports whether err is a unique violation in herald.history or herald.hints. In history, ON CONFLICT
// (key) overlooks the row with the key while another transaction updates it: its old index entry is dead already, and
// the scan has passed the new one. The insert then violates the primary key. In hints, another transaction, which need
// not lock the same agents, stored the same hint. A retry finds the row.
func missedConflict(err error) bool {
	var pe *pgconn.PgError
	const uniqueViolation = "23505"
	return errors.As(err, &pe) && pe.Code == uniqueViolation && (pe.TableName == "history" || pe.TableName == "hints")
}

// arrival is an Intake in the form in which Accept stores it.
type arrival struct {
	ledger.Intake
	id    uuid.UUID // of its new delivery, if it gets one
	key   string    // of the delivery
	kind  string
	agent erc8004.Agent
	raw   []byte // Job as JSON; nil for a Refused job, because it may contain secrets in plain text
	// followed means that a chain follower read the event from the chain. Only then is its block remembered for reorgs.
	followed bool
	read     bool // Job was read from the chain (by a follower or a check), or is a retraction (retractDelivery)
}

// maxKeyBytes limits stored keys to a length that Postgres can index. Every valid key is shorter.
const maxKeyBytes = 1 << 10

// newArrivals calls newArrival for each Intake.
func newArrivals(in []ledger.Intake) ([]arrival, error) {
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
func newArrival(it ledger.Intake) (arrival, error) {
	a := arrival{Intake: it, key: storable.Text(cmp.Or(it.Key, it.Job.Key()), maxKeyBytes),
		kind: storable.Text(string(it.Job.Kind), storable.MaxName), agent: ledger.AgentOf(it.Job)}
	a.Refused, a.Filtered = storable.Text(it.Refused, storable.MaxError), storable.Text(it.Filtered, storable.MaxError)
	if _, ok := tracecontext.Parse(it.Traceparent); !ok {
		a.Traceparent = ""
	}
	if a.isAgentUpdate() {
		return a, nil
	}
	a.id = job.IDOf(a.key)
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

// acceptLocked accepts any number of jobs, MaxAccept at a time, and dispatches from their agents' backlogs. tx has
// locked the agents. out[i] is the answer to in[i].
func (s *Store) acceptLocked(ctx context.Context, tx pgx.Tx,
	in []arrival) (out []ledger.Acceptance, tasks []ledger.Task, err error) {
	for part := range slices.Chunk(in, ledger.MaxAccept) {
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
func (s *Store) acceptPart(ctx context.Context, tx pgx.Tx,
	in []arrival) (out []ledger.Acceptance, tasks []ledger.Task, err error) {
	out = make([]ledger.Acceptance, len(in))
	byAgent := make(tasksByAgent)
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
func listAgentsToDispatch(in []arrival, out []ledger.Acceptance, byAgent tasksByAgent) []erc8004.Agent {
	isDispatched := make(map[uuid.UUID]bool, len(in))
	for _, dispatched := range byAgent {
		for _, t := range dispatched {
			isDispatched[t.ID] = true
		}
	}
	var agents []erc8004.Agent
	for i, a := range in {
		isSettled := out[i].Verdict == ledger.Accepted &&
			(isDispatched[out[i].ID] || out[i].Status == outcome.Waiting || out[i].Status == outcome.Skipped)
		if a.Refused == "" && out[i].Verdict != ledger.Refreshed && !isSettled {
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// raiseEpochs handles the AgentUpdated jobs among the arrivals. It raises the epochs of their agents, stores transfers
// of ownership, and sets the answers of these jobs to Refreshed.
func (s *Store) raiseEpochs(ctx context.Context, tx pgx.Tx, in []arrival, out []ledger.Acceptance) error {
	b, raised := &pgx.Batch{}, map[erc8004.Agent]bool{}
	for i, a := range in {
		if a.isAgentUpdate() {
			queueAgentChange(b, a, raised)
			out[i] = ledger.Acceptance{Verdict: ledger.Refreshed}
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
func (s *Store) insertNew(ctx context.Context, tx pgx.Tx, in []arrival, out []ledger.Acceptance,
	byAgent tasksByAgent) error {
	var rows []arrival
	added := make(map[string]bool, len(in)) // by key
	for i, a := range in {
		if out[i].Verdict == undecided && !added[a.key] {
			added[a.key] = true
			rows = append(rows, a)
		}
	}
	made, err := s.insertDeliveries(ctx, tx, rows)
	if err != nil {
		return err
	}
	kept := &pgx.Batch{}
	for i, a := range in {
		row, isNew := made[a.id]
		if out[i].Verdict != undecided || !isNew {
			continue
		}
		if a.Refused != "" && a.Received != nil { // rare, so accept.sql has no argument for it
			kept.Queue(`UPDATE herald.history SET result = $2 WHERE id = $1`, a.id, a.Received)
		}
		delete(made, a.id) // a later arrival with the same key gets the answer Known
		out[i] = a.answerInserted(row, byAgent)
	}
	if kept.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, kept).Close()
}

// answerInserted returns the answer Accepted for an arrival whose delivery was inserted. row describes that delivery.
// The status is Rejected for a Refused job, Skipped for a filtered one, Waiting if the delivery waits for another one
// (behind_earlier), and else Queued. A new task is added to byAgent.
func (a arrival) answerInserted(row newRow, byAgent tasksByAgent) ledger.Acceptance {
	status := outcome.Queued
	switch {
	case a.Refused != "":
		status = outcome.Rejected
	case row.filtered:
		status = outcome.Skipped
	case row.behind:
		status = outcome.Waiting
	}
	if row.dispatch > 0 {
		byAgent[a.agent] = append(byAgent[a.agent], ledger.Task{ID: a.id, N: row.dispatch, Kind: a.kind, Bulk: a.Bulk})
	}
	return ledger.Acceptance{Verdict: ledger.Accepted, ID: a.id, Key: a.key, Status: status}
}

// newRow is the state of a delivery that accept.sql has just inserted.
type newRow struct {
	dispatch int  // dispatch counter: 1 if the delivery was dispatched, else 0; -1 if it was not inserted
	behind   bool // the delivery waits for another one (behind_earlier)
	filtered bool // a filter of the default policy ended the delivery
}

// insertDeliveries inserts the deliveries of arrivals. It dispatches those that need not wait, if their agent has no
// older backlog and fewer than MaxDispatchedPerAgent dispatched deliveries. It inserts nothing for a key that already
// has a delivery. It returns the inserted rows by id, or errConcurrentUpdate if another transaction has just inserted
// one of several jobs of an ordering key.
func (s *Store) insertDeliveries(ctx context.Context, tx pgx.Tx, in []arrival) (map[uuid.UUID]newRow, error) {
	text := func(value func(arrival) string) []string { return column(in, value) }
	optional := func(value func(arrival) string) []*string {
		return column(in, func(a arrival) *string { return storable.OrNull(value(a)) })
	}
	chains, registries, agents := SplitAgents(column(in, func(a arrival) erc8004.Agent { return a.agent }))
	rows, _ := queryNamed(ctx, tx, statements.Named("accept"), pgx.NamedArgs{
		"ids":       column(in, func(a arrival) uuid.UUID { return a.id }),
		"chain_ids": chains, "registries": registries, "agent_ids": agents,
		"keys":           text(func(a arrival) string { return a.key }),
		"kinds":          text(func(a arrival) string { return a.kind }),
		"order_keys":     text(func(a arrival) string { return a.Job.OrderKey() }),
		"order_seqs":     text(func(a arrival) string { return fmt.Sprint(a.Job.OrderSeq()) }),
		"jobs":           column(in, func(a arrival) []byte { return a.raw }),
		"sealed_headers": column(in, func(a arrival) []byte { return a.SealedHeaders }),
		"errors":         optional(func(a arrival) string { return a.Refused }),
		"filters":        optional(func(a arrival) string { return a.Filtered }),
		"traceparents":   optional(func(a arrival) string { return a.Traceparent }),
		"bulks":          column(in, func(a arrival) bool { return a.Bulk }),
		"sources":        text(func(a arrival) string { return a.Source.Name }),
		"trusts":         column(in, func(a arrival) int { return int(a.Source.Trust) }),
		"bound":          len(in) > 0 && in[0].read, // all have the same
		"max_dispatched": ledger.MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent,
		"order": s.defaultOrder()})
	made := make(map[uuid.UUID]newRow, len(in))
	var id uuid.UUID
	var n newRow
	_, err := pgx.ForEachRow(rows, []any{&id, &n.dispatch, &n.behind, &n.filtered}, func() error {
		if n.dispatch < 0 { // the next look-up finds its key
			return errConcurrentUpdate
		}
		made[id] = n
		return nil
	})
	return made, err
}

// arrivalAgents returns the distinct agents of the arrivals, in the order of distinctAgents. It omits Refused jobs,
// because they may name no agent.
func arrivalAgents(in []arrival) []erc8004.Agent {
	agents := make([]erc8004.Agent, 0, len(in))
	for _, a := range in {
		if a.Refused == "" {
			agents = append(agents, a.agent)
		}
	}
	return distinctAgents(agents)
}

// queueAgentChange queues in b the statements for an AgentUpdated event. They store a transfer to another owner, and
// raise the epochs of the agents not in raised: thousands of updates of one row in a transaction would be slow.
func queueAgentChange(b *pgx.Batch, a arrival, raised map[erc8004.Agent]bool) {
	switch c := a.AgentChange; {
	case c.LastID != nil:
		b.Queue(statements.Text("raise_epochs"), a.agent.ChainID, a.agent.Registry, a.agent.ID, c.LastID.String())
		return
	case c.To != (common.Address{}) && a.Job.LogIndex != nil:
		queueNamed(b, statements.Named("note_transfer"), pgx.NamedArgs{
			"chain_id": a.agent.ChainID, "registry": a.agent.Registry, "agent_id": a.agent.ID,
			"transaction_hash": a.Job.TransactionHash.Hex(), "log_index": int64(*a.Job.LogIndex),
			"block_number": a.Job.BlockNumber, "at": a.Job.Timestamp, "from": strings.ToLower(c.From.Hex()),
			"to": strings.ToLower(c.To.Hex())})
	}
	if !raised[a.agent] {
		b.Queue(statements.Text("raise_epoch"), a.agent.ChainID, a.agent.Registry, a.agent.ID)
	}
	raised[a.agent] = true
}

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
		chains, ledger.WorkerGone.Seconds())
	return s.Conns.SendBatch(ctx, b).Close()
}
