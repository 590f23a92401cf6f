package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Limits of stored values, in bytes; maxNames is a number of names. maxSideBytes limits each of the arguments, response
// and result of an attempt.
const (
	maxSideBytes  = 16 << 10
	maxErrorBytes = 4 << 10
	maxURLBytes   = 2 << 10
	maxNameBytes  = 256
	maxNames      = 16
)

// Outcome is the result of one attempt. Record makes its strings storable and cuts long ones. Its JSON form is kept in
// Redis while Postgres is unavailable, so fields may be added but their JSON names must not change.
type Outcome struct {
	Status Status        `json:"status"`
	Reason reason.Reason `json:"reason,omitempty"` // empty for Delivered
	Delay  time.Duration `json:"delay,omitempty"`  // for Waiting: time until the next attempt; ns in JSON
	// Task, for Waiting: asynq runs a task again when the wait is over. False: the delivery waits without a task, and
	// the reconciler ends the wait.
	Task bool `json:"task,omitempty"`
	Anew bool `json:"anew,omitempty"` // with Task: the wait gets a new task, n + 1; the present one has not ended
	// Free: the attempt does not count. Its row is deleted and the next attempt gets its number. Ignored if Called.
	Free   bool   `json:"free,omitempty"`
	Called bool   `json:"called,omitempty"` // the call was sent, completely or partly
	Stage  string `json:"stage,omitempty"`  // last stage of the attempt
	Error  string `json:"error,omitempty"`  // a sentence for people, without secrets

	ToolName         string `json:"toolName,omitempty"`
	Endpoint         string `json:"endpoint,omitempty"`
	FileVerification string `json:"fileVerification,omitempty"`
	FileSource       string `json:"fileSource,omitempty"`
	// FileDisagrees are the fields of the file that contradict the event; used with FileVerification only.
	FileDisagrees []string        `json:"fileDisagrees,omitempty"`
	Arguments     json.RawMessage `json:"arguments,omitempty"` // as sent
	Response      json.RawMessage `json:"response,omitempty"`  // as received
	Result        json.RawMessage `json:"result,omitempty"`    // the part of the answer that the delivery keeps
	Protocol      string          `json:"protocol,omitempty"`
	// StepMicros are the durations of check, resolve, fetch, compose and call in µs, up to the last step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
	// CallTook, with Called, is the duration of the last call, with a connection that had to be made for it, but
	// without the renewal of a token; ns in JSON; 0: unknown.
	CallTook time.Duration `json:"callTook,omitempty"`

	AgentOK    bool            `json:"agentOk,omitempty"`    // the agent accepted the call
	AgentError string          `json:"agentError,omitempty"` // an error by the agent's fault; empty: none
	ServerInfo json.RawMessage `json:"serverInfo,omitempty"` // from the agent's initialize result
	// Tools are the agent's present tools (ToolList). They are set if this worker has not recorded their list yet, even
	// if another worker stored the same tools. Nil: the stored tools stay.
	Tools json.RawMessage `json:"tools,omitempty"`

	// Preferences are those that the agent returned with its answer; nil: it returned none.
	Preferences *Preferences `json:"preferences,omitempty"`
	// HoldLine is how long nothing of the agent's backlog is dispatched, and new deliveries go there too, because the
	// agent asked for a pause or a rate; with any status; ns in JSON; 0: unchanged.
	HoldLine time.Duration `json:"holdLine,omitempty"`

	// EndpointOfJob: the job named the endpoint. So the outcome says nothing about the agent, and Record does not
	// change the agent's row.
	EndpointOfJob bool `json:"endpointOfJob,omitempty"`

	// Elsewhere, for Held with agent_disabled: the servers file disabled the agent. So Record does not release the
	// delivery although the agent's row is enabled.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// FetchFailed: the feedback file could not be fetched. Claim.FetchFailures counts these.
	FetchFailed  bool `json:"fetchFailed,omitempty"`
	SkipDispatch bool `json:"keepLine,omitempty"` // leave the dispatch of the agent's next deliveries to the reconciler
	// Moved: the agent's endpoint may have moved, which would explain the failure. Record raises the agent's epoch, so
	// that workers resolve the agent again, but only once until the agent's next success.
	Moved bool `json:"moved,omitempty"`

	// Undecided: the check did not find the event, or not yet. If a hint arrived after the claim, the delivery is checked
	// again at once.
	Undecided bool `json:"undecided,omitempty"`
	// Rerouted, for Waiting: Bind gave the delivery another agent or ordering key, so it returns to that backlog at once.
	Rerouted bool `json:"rerouted,omitempty"`
	// Gone, for Cancelled: the chain no longer has the event with which the agent was or may have been called.
	Gone *Gone `json:"gone,omitempty"`
	// Refuted are the ranks of the hints where the chain does not have the event.
	Refuted []int `json:"refuted,omitempty"`
}

// Gone is an event that the chain no longer has, although its agent was or may have been called. Feedback is retracted.
type Gone struct {
	Next *job.Job `json:"next,omitempty"` // the event that has its key now, for a delivery of its own; nil: none
}

// MarshalJSON encodes o with the parts from outside in the form in which Record would store them. So it cannot fail
// because a part is not valid JSON.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	for _, side := range []*json.RawMessage{&o.Arguments, &o.Response, &o.Result, &o.ServerInfo, &o.Tools} {
		*side = storable.JSON(*side, maxSideBytes)
	}
	return json.Marshal(plain(o))
}

// SpooledOutcome is the outcome of an earlier attempt that Postgres could not store at the time. Redis stored it.
type SpooledOutcome struct {
	Attempt   int       `json:"attempt"`   // number of the attempt
	StartedAt time.Time `json:"startedAt"` // identifies the row of the attempt, with Attempt
	At        time.Time `json:"at"`        // when the outcome became known
	Outcome   Outcome   `json:"outcome"`   // the caller of Adopt subtracts the elapsed time from Delay
}

// Recorded is the state of the delivery after Record.
type Recorded struct {
	// Task is the task with which the delivery waits, if Outcome.Task is set: the claim's task, or a new one (Anew).
	Task *Task
	// Next are tasks for the caller to put into Redis or to remove there: of the agent's next deliveries, which the
	// same transaction dispatched, and Ended ones of released deliveries.
	Next []Task

	Rechecked     bool          // the delivery was queued again at once (recheck.sql)
	NextAttemptAt time.Time     // for Waiting: time of the next attempt, by Postgres' clock
	Age           time.Duration // time since the delivery was accepted
}

// Record stores the outcome of the claim's attempt and dispatches the agent's next deliveries, in one round trip and
// one commit. Concurrent plain outcomes share both (record_group.go). The caller puts the returned tasks into Redis.
// Calling it again after an error is harmless.
//
// It returns ErrFenced if the claim is lost. Then nothing has changed, except that a late Delivered completes its own
// attempt. A late Delivered of a delivery that has not ended is no error: it ends the delivery.
func (s *Store) Record(ctx context.Context, c *Claim, o Outcome) (rec Recorded, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "record delivery %s", c.ID)
	if err := o.checkStatus(); err != nil {
		return Recorded{}, err
	}

	r := recordRequest{c, o}
	switch {
	case o.Gone != nil:
		rec, err = s.recordGone(ctx, c, o)
	case r.isPlain():
		rec, err = s.records.do(ctx, r)
	default:
		rec, err = s.recordAlone(ctx, r)
	}
	if err != nil {
		return Recorded{}, err // nothing was committed, so nothing was dispatched
	}
	return rec, nil
}

// recordAlone records one outcome. If the partition of the attempt is missing, it repeats that with the partitioned
// table.
func (s *Store) recordAlone(ctx context.Context, r recordRequest) (Recorded, error) {
	rec, err := s.recordOnce(ctx, r.claim, r.outcome)
	if err != nil && r.claim.week != "" && isMissingWeek(err) {
		r.claim.week = "" // use the partitioned table
		rec, err = s.recordOnce(ctx, r.claim, r.outcome)
	}
	return rec, err
}

// recordOnce records an outcome in one batch: it locks the agent, runs record.sql and dispatches.
func (s *Store) recordOnce(ctx context.Context, c *Claim, o Outcome) (Recorded, error) {
	a := c.Agent()
	b := &pgx.Batch{}
	b.Queue(statement("lock_agent"), a.ChainID, a.Registry, a.ID)
	s.queueRecord(b, c, o, SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt}, nil)
	res := &onceClosed{BatchResults: s.pool.SendBatch(ctx, b)}
	defer res.Close()
	if _, err := res.Exec(); err != nil {
		return Recorded{}, fmt.Errorf("lock the agent: %w", err)
	}
	return readRecorded(res, c, o, c.Attempt)
}

// onceClosed is a batch that may be closed twice. The first Close returns the connection to the pool. After a failed
// batch, a second Close of pgx would access the connection's cache, which another goroutine may be using.
type onceClosed struct {
	pgx.BatchResults
	closed bool
}

func (r *onceClosed) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.BatchResults.Close()
}

// isMissingWeek reports whether err means that the partition of an attempt cannot be written directly: it was dropped
// by hand since the claim, or the database user may write only to the partitioned table.
func isMissingWeek(err error) bool {
	var pe *pgconn.PgError
	const undefinedTable, insufficientPrivilege = "42P01", "42501"
	return errors.As(err, &pe) && (pe.Code == undefinedTable || pe.Code == insufficientPrivilege)
}

// Adopt records the outcome p of an earlier attempt of the claimed delivery, instead of making the claim's attempt.
// That attempt, which must not have called the agent, is undone; the attempt of p is completed, and the delivery
// changes as Record would change it. p.Outcome.Delay is the rest of the wait. Calling Adopt again after an error is
// harmless.
//
// It returns ErrFenced as Record does. It returns ErrStale if the attempt of p already has an outcome, or was free and
// undone; then nothing has changed.
func (s *Store) Adopt(ctx context.Context, c *Claim, p SpooledOutcome) (rec Recorded, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "adopt what attempt %d of delivery %s led to", p.Attempt, c.ID)
	if err := p.Outcome.checkStatus(); err != nil {
		return rec, err
	}
	a, o := c.Agent(), p.Outcome
	took := min(max(p.At.Sub(p.StartedAt).Milliseconds(), 0), math.MaxInt32)
	fenced := false
	// Adopt is rare, so it may need more round trips than Record: the next statements depend on the first one's result.
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statement("lock_agent"), a.ChainID, a.Registry, a.ID); err != nil {
			return fmt.Errorf("lock the agent: %w", err)
		}
		var ours, open bool
		err := tx.QueryRow(ctx, statement("adopt"), c.ID, c.No, c.StartedAt, c.Attempt, p.StartedAt, p.Attempt, o.Free &&
			!o.Called).Scan(&ours, &open)
		if err != nil {
			return err
		}
		if ours && !open {
			return ErrStale
		}
		o.Free = false // adopt.sql has undone free attempts
		b := &pgx.Batch{}
		s.queueRecord(b, c, o, p, &took)
		res := tx.SendBatch(ctx, b)
		defer res.Close()
		rec, err = readRecorded(res, c, o, p.Attempt)
		if fenced = errors.Is(err, ErrFenced); fenced {
			return nil // commit: a late success may have completed its attempt
		}
		if err == nil && o.Gone != nil {
			return s.endGone(ctx, tx, c, *o.Gone, &rec)
		}
		return err
	})
	if fenced {
		return Recorded{}, ErrFenced
	}
	return rec, err
}

// checkStatus returns an error for a status that an attempt cannot have as its outcome.
func (o Outcome) checkStatus() error {
	if !o.Status.Final() && o.Status != Waiting && o.Status != Held {
		return fmt.Errorf("%q is not a status that an attempt can end with", o.Status)
	}
	return nil
}

// queueRecord queues the statements that follow the agent's lock: they record o as the outcome of attempt p, which is
// the claim's or an earlier one, and dispatch the agent's next deliveries. A nil tookMs means that the attempt ends
// now.
func (s *Store) queueRecord(b *pgx.Batch, c *Claim, o Outcome, p SpooledOutcome, tookMs *int64) {
	a := c.Agent()
	b.Queue(recordStatement(c, p), namedStatement("record").args(pgx.NamedArgs{
		"delivery_id": c.ID, "claim_no": c.No, "started_at": p.StartedAt, "number": p.Attempt, "duration_ms": tookMs,
		"status": o.Status, "reason": nameOrNull(string(o.Reason)), "delay": o.Delay, "task": o.Task, "anew": o.Anew, "free": o.Free,
		"called": o.Called,
		"stage":  storable.Text(o.Stage, maxNameBytes), "error": nullIfEmpty(storable.Text(o.Error, maxErrorBytes)),

		"tool_name": nameOrNull(o.ToolName), "endpoint": nullIfEmpty(storable.Text(o.Endpoint, maxURLBytes)),
		"protocol":          nameOrNull(o.Protocol),
		"step_us":           o.StepMicros,
		"file_verification": nameOrNull(o.FileVerification), "file_source": nameOrNull(o.FileSource),
		"file_disagrees": boundNames(o.FileDisagrees),
		"arguments":      storable.JSON(o.Arguments, maxSideBytes), "response": storable.JSON(o.Response, maxSideBytes),
		"result": storable.JSON(o.Result, maxSideBytes), "fetch_failed": o.FetchFailed,

		"agent_ok": o.AgentOK, "agent_error": nullIfEmpty(storable.Text(o.AgentError, maxErrorBytes)), "moved": o.Moved, "endpoint_of_job": o.EndpointOfJob,
		"latency":     o.latencyVector(),
		"epoch":       c.Epoch,
		"server_info": storable.JSON(o.ServerInfo, maxSideBytes), "tools": storable.JSON(o.Tools, maxSideBytes),
		"preferences": o.Preferences.encodeJSON(), "hold_line": o.HoldLine})...)
	if reasons, since := o.mendedReasons(c.Epoch); reasons != nil {
		b.Queue(statement("release_held"), a.ChainID, a.Registry, a.ID, maxMove, reasons, since)
	}
	if len(o.Refuted) > 0 {
		b.Queue(`UPDATE herald.hints SET refuted = true WHERE delivery_id = $1 AND rank = ANY($2)`, c.ID, o.Refuted)
	}
	if o.Undecided || o.Rerouted {
		b.Queue(statement("recheck"), c.ID, c.No, c.Hints, o.Rerouted)
	}
	if !o.SkipDispatch {
		b.Queue(statement("dispatch"), a.ChainID, a.Registry, a.ID, MaxDispatchedPerAgent, c.ID, c.No, s.strict)
	}
}

// recordStatement returns record.sql for the partition that contains the row of attempt p, if p is the claim's attempt,
// otherwise for the partitioned table.
func recordStatement(c *Claim, p SpooledOutcome) string {
	text := statement("record")
	if c.week == "" || p.Attempt != c.Attempt || !p.StartedAt.Equal(c.StartedAt) {
		return text
	}
	return inWeek(text, c.week)
}

// readRecorded reads the answers to the statements of queueRecord, and then that of the commit. It returns ErrFenced,
// after the commit, if the claim is lost.
func readRecorded(res pgx.BatchResults, c *Claim, o Outcome, attempt int) (rec Recorded, err error) {
	var n int
	var next *time.Time
	var accepted, now time.Time
	var bulk bool
	err = res.QueryRow().Scan(&n, &next, &accepted, &now, &bulk)
	fenced := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !fenced {
		return rec, err
	}
	var ended []Task
	if reasons, _ := o.mendedReasons(c.Epoch); reasons != nil {
		rows, _ := res.Query()
		if ended, err = pgx.CollectRows(rows, scanEnded); err != nil {
			return rec, fmt.Errorf("release deliveries whose reason is gone: %w", err)
		}
	}
	if len(o.Refuted) > 0 {
		if _, err := res.Exec(); err != nil {
			return rec, fmt.Errorf("note refuted hints: %w", err)
		}
	}
	if o.Undecided || o.Rerouted {
		tag, err := res.Exec()
		if err != nil {
			return rec, fmt.Errorf("queue the delivery for another check: %w", err)
		}
		if rec.Rechecked = tag.RowsAffected() > 0; rec.Rechecked {
			next = nil
		}
	}
	if !o.SkipDispatch {
		rows, _ := res.Query()
		if rec.Next, err = pgx.CollectRows(rows, scanTask); err != nil {
			return rec, fmt.Errorf("dispatch the next: %w", err)
		}
	}
	rec.Next = append(rec.Next, ended...)
	if err := res.Close(); err != nil { // the error of the commit
		return rec, err
	}
	if fenced {
		return rec, ErrFenced
	}
	rec.Age = now.Sub(accepted)
	rec.addWait(c, o, attempt, n, next, bulk)
	return rec, nil
}

// addWait sets the time and the task of the delivery's wait. next is the end of the wait; nil: the delivery does not
// wait. n and bulk are those of the task; attempt is the number of the attempt.
func (rec *Recorded) addWait(c *Claim, o Outcome, attempt, n int, next *time.Time, bulk bool) {
	if next == nil {
		return
	}
	rec.NextAttemptAt = *next
	if o.Task {
		rec.Task = &Task{ID: c.ID, N: n, Kind: cmp.Or(c.kind, string(c.Job.Kind)), Attempts: max(attempt, 1),
			Bulk: bulk, At: *next}
	}
}

// KeepSide returns the arguments or the response of a call in the form in which Record stores them.
func KeepSide(raw json.RawMessage) json.RawMessage { return storable.JSON(raw, maxSideBytes) }

// nameOrNull returns a name in storable form, cut to maxNameBytes, or nil for "".
func nameOrNull(s string) *string { return nullIfEmpty(storable.Text(s, maxNameBytes)) }

// boundNames returns the first maxNames names in storable form.
func boundNames(list []string) []string {
	var out []string
	for _, s := range list[:min(len(list), maxNames)] {
		out = append(out, storable.Text(s, maxNameBytes))
	}
	return out
}

func nullIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
