package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Outcome is the result of one attempt: the delivery's next status, and data about the call. The package comment
// defines the terms. Record makes the strings valid UTF-8 without NUL, and cuts long ones. While Postgres is
// unavailable, Redis stores outcomes as JSON. So fields may be added, but their JSON names must not change.
type Outcome struct {
	Status outcome.Status `json:"status"`
	Reason outcome.Reason `json:"reason,omitempty"` // empty for Delivered
	Delay  time.Duration  `json:"delay,omitempty"`  // for Waiting: time until the next attempt (JSON: ns)
	// Task, for Waiting: the delivery has a task in Redis during the wait, which asynq runs when the wait is over. If
	// Task is false, the delivery waits in Postgres only, and the reconciler ends the wait.
	Task bool `json:"task,omitempty"`
	// Anew, with Task: the delivery gets a new task for the wait, because asynq has not ended the claimed task yet.
	Anew bool `json:"anew,omitempty"`
	// Free: the attempt does not count and is not stored. The next attempt gets its number. Free is ignored if Called
	// is set.
	Free   bool   `json:"free,omitempty"`
	Called bool   `json:"called,omitempty"` // at least a part of the call was sent to the agent
	Stage  string `json:"stage,omitempty"`  // last step of the attempt, for example "fetch"
	Error  string `json:"error,omitempty"`  // a sentence for operators, without secrets

	ToolName         string `json:"toolName,omitempty"`
	Endpoint         string `json:"endpoint,omitempty"`
	FileVerification string `json:"fileVerification,omitempty"`
	FileSource       string `json:"fileSource,omitempty"`
	// FileDisagrees has the fields of the feedback file that contradict the event. It is stored only if
	// FileVerification is set.
	FileDisagrees []string        `json:"fileDisagrees,omitempty"`
	Arguments     json.RawMessage `json:"arguments,omitempty"` // of the tool call, as sent
	Response      json.RawMessage `json:"response,omitempty"`  // to the tool call, as received
	Result        json.RawMessage `json:"result,omitempty"`    // the part of the response for the delivery's row
	Protocol      string          `json:"protocol,omitempty"`
	// StepMicros has the durations of the steps check, resolve, fetch, connect, compose and call in µs, up to the last
	// step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
	// CallTook, with Called, is the duration of the last call (JSON: ns). It includes connecting to the agent, if that
	// was needed, but not the renewal of an access token. 0: unknown.
	CallTook time.Duration `json:"callTook,omitempty"`

	AgentOK    bool            `json:"agentOk,omitempty"`    // the agent accepted the call
	AgentError string          `json:"agentError,omitempty"` // the error, if the agent caused it; else empty
	ServerInfo json.RawMessage `json:"serverInfo,omitempty"` // from the agent's initialize result
	// Tools is the agent's list of tools (ToolList) for the agent's row. Nil: the stored list stays. A worker sets
	// Tools when it reads a list that it has not seen before, even if another worker has stored the same list.
	Tools json.RawMessage `json:"tools,omitempty"`

	Registration *Registration `json:"registration,omitempty"` // what the attempt resolved; nil: the stored one stays

	// EndpointOfJob: the job named the endpoint that was called. Such an outcome shows nothing about the agent's own
	// endpoint, so Record does not change the agent's row.
	EndpointOfJob bool `json:"endpointOfJob,omitempty"`

	// Elsewhere, for Held with agent_disabled: the agent is disabled by the servers file, the operator's list of MCP
	// servers, and not by the agent's row. Record then does not release the delivery, although the row is enabled.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// FetchFailed: the feedback file could not be fetched. Claim.FetchFailures counts these.
	FetchFailed bool `json:"fetchFailed,omitempty"`
	// SkipDispatch: Record does not dispatch the agent's next deliveries, because they would have to wait for the same
	// cause, for example a rate limit. The reconciler dispatches them later.
	SkipDispatch bool `json:"keepLine,omitempty"`
	// Moved: the call may have failed because the agent's endpoint moved. Record raises the agent's epoch, so that
	// workers resolve the agent again. After that, another outcome with Moved does not raise it again before a success,
	// or before another cause has raised it.
	Moved bool `json:"moved,omitempty"`

	// Undecided: the check found the event in no confirmed block, or a hint (type Hint) arrived during the check. If a
	// hint arrived after the claim, Record queues the delivery again at once, because the hint may name the right
	// position.
	Undecided bool `json:"undecided,omitempty"`
	// Rerouted, for Waiting: Bind gave the delivery another agent or ordering key, for which it must be dispatched
	// anew. Record puts the delivery into that agent's backlog at once.
	Rerouted bool `json:"rerouted,omitempty"`
	// NoTurn, for Waiting: the event was found, but the delivery did not get the turn of its ordering key. Record
	// returns the delivery to the backlog, and a later claim gets the turn.
	NoTurn bool `json:"noTurn,omitempty"`
	// Gone, for Cancelled: the chain no longer has the event, and the delivery must not get another one.
	Gone *Gone `json:"gone,omitempty"`
	// Refuted has the ranks of the hints at whose positions the check did not find the event.
	Refuted []int `json:"refuted,omitempty"`
}

// Gone describes an event that is no longer on the chain, although its agent was or may have been called with it, or
// although an operator replayed its delivery, which has lost its key (Claim.HasLostKey). If the event is a feedback
// with which the agent was or may have been called, Record inserts a retraction: a delivery that informs the agent.
type Gone struct {
	Next *job.Job `json:"next,omitempty"` // the event that has the key now and needs a delivery; nil: none
}

// MarshalJSON encodes o. First it makes the JSON values from outside storable, as Record does (storable.JSON).
// Otherwise, a value that is not valid JSON would make the encoding fail.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	for _, side := range []*json.RawMessage{&o.Arguments, &o.Response, &o.Result, &o.ServerInfo, &o.Tools} {
		*side = storable.JSON(*side, storable.MaxSide)
	}
	return json.Marshal(plain(o))
}

// SpooledOutcome is the outcome of an earlier attempt. Redis stored it, because Postgres was unavailable when the
// attempt ended.
type SpooledOutcome struct {
	Attempt   int       `json:"attempt"`   // number of that attempt
	StartedAt time.Time `json:"startedAt"` // when that attempt began; Attempt and StartedAt identify its row
	At        time.Time `json:"at"`        // when the outcome became known
	Outcome   Outcome   `json:"outcome"`   // the caller reduces Delay by the time since At before it calls Adopt
}

// Recorded is the result of Record: the delivery's new state, and tasks that the caller puts into Redis or removes
// there.
type Recorded struct {
	// Task is the task with which the delivery waits: a new one for Outcome.Anew, else the claimed one. Nil: the
	// delivery has none (Outcome.Task).
	Task *Task
	// Next has the tasks of the agent's next deliveries, which the same transaction dispatched; the caller puts them
	// into Redis. It also has the former tasks of held deliveries that the transaction released (Task.Ended); the
	// caller removes them from Redis.
	Next []Task

	Rechecked     bool          // the delivery was queued again at once (Undecided, Rerouted, NoTurn)
	NextAttemptAt time.Time     // for Waiting: time of the next attempt, by Postgres' clock
	Age           time.Duration // time since the delivery was accepted
}

// Record stores the outcome of the claim's attempt and dispatches the agent's next deliveries, in one round trip and
// one commit. Concurrent calls share a round trip and a commit if their outcomes are plain (isPlain). The caller puts
// the returned tasks into Redis. Calling Record again after an error is harmless.
//
// If the claim is lost, Record returns ErrFenced and changes nothing. The outcome Delivered is an exception, because
// the agent has the event and must not get it again:
//   - If the delivery has not ended, Record ends it as delivered and returns no error.
//   - If the delivery has ended, Record completes the row of the attempt, stores that the agent was called, and returns
//     ErrFenced.
func (s *Store) Record(ctx context.Context, c *Claim, o Outcome) (rec Recorded, err error) {
	ctx, end := s.StartCall(ctx, &err, "record delivery %s", c.ID)
	defer end()
	if err := o.checkStatus(); err != nil {
		return Recorded{}, err
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
		return Recorded{}, err // nothing was committed, so nothing was dispatched
	}
	return rec, nil
}

// recordAlone records one outcome in one batch. It waits for the rows of the agent and of the delivery.
func (s *Store) recordAlone(ctx context.Context, q recordRequest) (Recorded, error) {
	a := q.claim.Agent()
	b := &pgx.Batch{}
	b.Queue(statements.Text("lock_agent"), a.ChainID, a.Registry, a.ID)
	written := queueRecord(b, q)
	if err := s.Conns.SendBatch(ctx, b).Close(); err != nil {
		return Recorded{}, err
	}
	return written.result()
}

// recordGone records the outcome of q, whose event is gone from the chain (Outcome.Gone), in one transaction with the
// retraction of the delivery.
func (s *Store) recordGone(ctx context.Context, q recordRequest) (rec Recorded, err error) {
	err = pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
		if err := lockAgentOf(ctx, tx, q.claim); err != nil {
			return err
		}
		rec, err = s.recordIn(ctx, tx, q)
		return err
	})
	return rec, err
}

// lockAgentOf locks the agent of the claim c.
func lockAgentOf(ctx context.Context, tx pgx.Tx, c *Claim) error {
	a := c.Agent()
	if _, err := tx.Exec(ctx, statements.Text("lock_agent"), a.ChainID, a.Registry, a.ID); err != nil {
		return fmt.Errorf("lock the agent: %w", err)
	}
	return nil
}

// recordIn records the outcome of q in tx, which has locked the agent. If the delivery's event is gone from the chain
// (Outcome.Gone), it also retracts the delivery (replaceEvent).
func (s *Store) recordIn(ctx context.Context, tx pgx.Tx, q recordRequest) (Recorded, error) {
	b := &pgx.Batch{}
	written := queueRecord(b, q)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return Recorded{}, err
	}
	rec, err := written.result()
	if err != nil || q.outcome.Gone == nil {
		return rec, err
	}
	byAgent := make(map[erc8004.Agent][]Task)
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
func (s *Store) Adopt(ctx context.Context, c *Claim, p SpooledOutcome) (rec Recorded, err error) {
	ctx, end := s.StartCall(ctx, &err, "adopt what attempt %d of delivery %s led to", p.Attempt, c.ID)
	defer end()
	if err := p.Outcome.checkStatus(); err != nil {
		return rec, err
	}
	o := p.Outcome
	took := int32(min(max(p.At.Sub(p.StartedAt).Milliseconds(), 0), math.MaxInt32))
	fenced := false
	// The statements need several round trips, because the later ones depend on the result of adopt.sql. Adopt is rare.
	err = pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
		if err := lockAgentOf(ctx, tx, c); err != nil {
			return err
		}
		var ours, open bool
		row := tx.QueryRow(ctx, statements.Text("adopt"), c.ID, c.No, p.Attempt, p.StartedAt)
		if err := row.Scan(&ours, &open); err != nil {
			return err
		}
		if ours && !open {
			return ErrStale
		}
		// The row of a free attempt is deleted, but only if it is the last one before c's: the others keep their
		// numbers.
		o.Free = o.Free && p.Attempt == c.Attempt-1
		rec, err = s.recordIn(ctx, tx, recordRequest{claim: c, outcome: o, attempt: p.Attempt, startedAt: p.StartedAt,
			tookMs: &took})
		if fenced = errors.Is(err, ErrFenced); fenced {
			return nil // commit: for Delivered, the attempt's row is completed although the claim is lost
		}
		return err
	})
	if fenced {
		return Recorded{}, ErrFenced
	}
	return rec, err
}

// checkStatus returns an error unless o.Status is final, Waiting or Held, the statuses with which an attempt can end.
func (o Outcome) checkStatus() error {
	if !o.Status.Final() && o.Status != outcome.Waiting && o.Status != outcome.Held {
		return fmt.Errorf("%q is not a status that an attempt can end with", o.Status)
	}
	return nil
}

// needsRecheck reports whether the outcome is Undecided, Rerouted or NoTurn. For these, record.sql decides whether it
// returns the delivery to the backlog at once.
func (o Outcome) needsRecheck() bool { return o.Undecided || o.Rerouted || o.NoTurn }

// recordRequest is the request to record the outcome of an attempt: of the claim's own attempt, or of an earlier one
// (Adopt).
type recordRequest struct {
	claim     *Claim
	outcome   Outcome
	attempt   int // number of the attempt
	startedAt time.Time
	tookMs    *int32 // duration of the attempt; nil: it ends now
}

func (q recordRequest) agent() erc8004.Agent { return q.claim.Agent() }
func (q recordRequest) id() uuid.UUID        { return q.claim.ID }
func (q recordRequest) claimNo() int64       { return q.claim.No }

// newRecordRequest returns a request to record the outcome of the claim's own attempt.
func newRecordRequest(c *Claim, o Outcome) recordRequest {
	return recordRequest{claim: c, outcome: o, attempt: c.Attempt, startedAt: c.StartedAt}
}

// isPlain reports whether recordGroup may record the outcome: the outcome needs record.sql and dispatch.sql only, and
// does not raise the agent's epoch. The end of a delivery whose event was not found is not plain: its row must be
// locked first (lock_delivery.sql), because a job that arrives may lock another agent than the delivery's.
func (q recordRequest) isPlain() bool {
	reasons, _ := q.outcome.mendedReasons(0)
	return reasons == nil && !q.outcome.SkipDispatch && len(q.outcome.Refuted) == 0 && !q.outcome.Moved &&
		!(q.outcome.Undecided && q.outcome.Status.Final())
}

// recordGroup records plain outcomes (isPlain) of several attempts and dispatches their agents' next deliveries, in one
// round trip and one commit. A request whose outcome record.sql did not record gets no answer. The coalescer then calls
// recordAlone for it. An agent's next tasks are distributed evenly among the callers that recorded its deliveries.
func (s *Store) recordGroup(ctx context.Context, group []recordRequest) ([]coalescer.Result[Recorded], error) {
	members := sortMembers(group)
	sorted := column(members, func(i int) recordRequest { return group[i] })
	results, callers := make([]coalescer.Result[Recorded], len(group)), make(map[erc8004.Agent][]int, len(members))
	b := &pgx.Batch{}
	chains, registries, ids := SplitAgents(column(sorted, recordRequest.agent))
	b.Queue(statements.Text("lock_agents"), chains, registries, ids)
	queueOutcomes(b, sorted, recordArgs(sorted, false), func(nr int, rec Recorded) {
		i := members[nr-1]
		results[i] = coalescer.Result[Recorded]{Answer: rec, Answered: true}
		callers[group[i].agent()] = append(callers[group[i].agent()], i)
	})
	queueDispatch(b, sorted, func(t Task, a erc8004.Agent) error {
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
func queueOutcomes(b *pgx.Batch, group []recordRequest, args pgx.NamedArgs, add func(nr int, rec Recorded)) {
	queueNamed(b, statements.Named("record"), args).Query(func(rows pgx.Rows) error {
		var nr, n int
		var next *time.Time
		var accepted, now time.Time
		var bulk, again bool
		_, err := pgx.ForEachRow(rows, []any{&nr, &n, &next, &accepted, &now, &bulk, &again}, func() error {
			q, rec := group[nr-1], Recorded{Age: now.Sub(accepted), Rechecked: again}
			if next != nil {
				rec.NextAttemptAt = *next
				if q.outcome.Task {
					rec.Task = &Task{ID: q.claim.ID, N: n, Kind: cmp.Or(q.claim.kind, string(q.claim.Job.Kind)),
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
func queueDispatch(b *pgx.Batch, group []recordRequest, add func(Task, erc8004.Agent) error) {
	chains, registries, agents := SplitAgents(column(group, recordRequest.agent))
	args := dispatchArgs(chains, registries, agents, column(group, recordRequest.id),
		column(group, recordRequest.claimNo))
	queueNamed(b, statements.Named("dispatch"), args).Query(func(rows pgx.Rows) error {
		_, err := readDispatched(rows, add)
		return err
	})
}

// written has the results of the statements of queueRecord.
type written struct {
	Recorded
	recorded bool   // the claim was valid
	ended    []Task // former tasks of held deliveries that were released
}

// queueRecord queues in b the statements that record q and dispatch the agent's next deliveries. The statement that
// locks the agent must precede them.
func queueRecord(b *pgx.Batch, q recordRequest) *written {
	w := &written{}
	c, o, a := q.claim, q.outcome, q.agent()
	group := []recordRequest{q}
	args := recordArgs(group, true)
	b.Queue(statements.Text("lock_delivery"), c.ID)
	queueOutcomes(b, group, args, func(_ int, rec Recorded) { w.Recorded, w.recorded = rec, true })
	if o.Status == outcome.Delivered {
		queueNamed(b, statements.Named("complete"), args)
	}
	if reasons, since := o.mendedReasons(c.Epoch); reasons != nil {
		b.Queue(statements.Text("release_held"), a.ChainID, a.Registry, a.ID, maxMove, reasons, since, c.ID, c.No).
			Query(func(rows pgx.Rows) (err error) {
				w.ended, err = pgx.CollectRows(rows, scanEnded)
				return err
			})
	}
	if len(o.Refuted) > 0 {
		b.Queue(`UPDATE herald.hints SET refuted = true WHERE delivery_id = $1 AND rank = ANY($2)`, c.ID, o.Refuted)
	}
	if !o.SkipDispatch {
		queueDispatch(b, group, func(t Task, _ erc8004.Agent) error { w.Next = append(w.Next, t); return nil })
	}
	return w
}

// result is called after the commit, or in a transaction after the batch. If the claim is lost, it returns ErrFenced;
// a late success may have changed rows nevertheless.
func (w *written) result() (Recorded, error) {
	w.Next = append(w.Next, w.ended...)
	if !w.recorded {
		return w.Recorded, ErrFenced
	}
	return w.Recorded, nil
}

// KeepSide returns the arguments or the response of a call as Record stores them: as storable JSON of at most 16 KiB.
func KeepSide(raw json.RawMessage) json.RawMessage { return storable.JSON(raw, storable.MaxSide) }
