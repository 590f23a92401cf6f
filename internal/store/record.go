package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Bounds of what is kept (DESIGN §4: attempts are bounded to 16 KiB each side).
const (
	maxSideBytes  = 16 << 10
	maxErrorBytes = 4 << 10
	maxURLBytes   = 2 << 10
	maxNameBytes  = 256
	maxNames      = 16
)

// Outcome is what one attempt led to. Strings are made storable and cut here. As JSON it is what Redis keeps while
// Postgres is away: fields may be added, not renamed.
type Outcome struct {
	Status Status        `json:"status"`
	Reason reason.Reason `json:"reason,omitempty"` // empty for delivered
	Delay  time.Duration `json:"delay,omitempty"`  // Waiting: until the next attempt; ns in JSON
	Task   bool          `json:"task,omitempty"`   // Waiting: the task is tried again when it is due; false leaves the wait to the reconciler
	Anew   bool          `json:"anew,omitempty"`   // Task: another one, n + 1, because this one goes on
	Free   bool          `json:"free,omitempty"`   // costs no attempt: count and row are taken back, unless Called
	Called bool          `json:"called,omitempty"` // a call was written, in whole or in part
	Stage  string        `json:"stage,omitempty"`  // how far the attempt came
	Error  string        `json:"error,omitempty"`  // a sentence for people; never with a secret

	ToolName         string          `json:"toolName,omitempty"`
	Endpoint         string          `json:"endpoint,omitempty"`
	FileVerification string          `json:"fileVerification,omitempty"`
	FileSource       string          `json:"fileSource,omitempty"`
	FileDisagrees    []string        `json:"fileDisagrees,omitempty"` // fields of the file that contradict the event; counts with FileVerification only
	Arguments        json.RawMessage `json:"arguments,omitempty"`     // as sent
	Response         json.RawMessage `json:"response,omitempty"`      // as received
	Result           json.RawMessage `json:"result,omitempty"`        // what the delivery keeps of the answer
	Protocol         string          `json:"protocol,omitempty"`
	StepMicros       []int32         `json:"stepMicros,omitempty"` // how long check, resolve, fetch, compose and call took, as far as it came
	CallTook         time.Duration   `json:"callTook,omitempty"`   // Called: how long the call took by itself; ns in JSON; 0: nobody knows

	AgentOK    bool            `json:"agentOk,omitempty"`    // the agent took the call
	AgentError string          `json:"agentError,omitempty"` // what the agent is to blame for
	ServerInfo json.RawMessage `json:"serverInfo,omitempty"` // as the agent introduced itself
	Tools      json.RawMessage `json:"tools,omitempty"`      // what the agent offers (ToolList), when that is news; nil: as known

	Preferences *Preferences  `json:"preferences,omitempty"` // what the agent asked for in its answer; nil: it said nothing of that
	HoldLine    time.Duration `json:"holdLine,omitempty"`    // Waiting: what comes for the agent stays in its line for so long; ns in JSON

	// EndpointOfJob: the job named the endpoint. What happened there says nothing about the agent: its row keeps its state,
	// times, totals and hours.
	EndpointOfJob bool `json:"endpointOfJob,omitempty"`

	Elsewhere    bool `json:"elsewhere,omitempty"`   // Held, agent_disabled: not by the agent's row, so that the row says enabled releases nothing
	FetchFailed  bool `json:"fetchFailed,omitempty"` // the feedback file could not be fetched; Claim.FetchFailures counts these
	SkipDispatch bool `json:"keepLine,omitempty"`    // the agent's next is not dispatched now: the reconciler does it
	Moved        bool `json:"moved,omitempty"`       // a moved endpoint would explain the failure: the agent's epoch is raised once

	// NotAtPosition: the chain does not show the event where the job says, or its node does not answer, or its agent has
	// no slot. Unless it was called, another job of the event takes over.
	NotAtPosition bool `json:"unplaced,omitempty"`
}

// MarshalJSON never fails: what a stranger sent, and may be no JSON, is cut as it would be in Postgres.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	for _, side := range []*json.RawMessage{&o.Arguments, &o.Response, &o.Result, &o.ServerInfo, &o.Tools} {
		*side = storable.JSON(*side, maxSideBytes)
	}
	return json.Marshal(plain(o))
}

// SpooledOutcome is what an earlier attempt is known to have led to, though Postgres did not take it then.
type SpooledOutcome struct {
	Attempt   int       `json:"attempt"`
	StartedAt time.Time `json:"startedAt"` // with Attempt it names the row
	At        time.Time `json:"at"`        // when it became known
	Outcome   Outcome   `json:"outcome"`   // whoever adopts it takes from Delay what has passed
}

// Recorded is the row after Record.
type Recorded struct {
	Task *Task  // what the delivery waits with, when Outcome.Task asked for it: the claim's task, or the next one (Anew)
	Next []Task // the agent's next deliveries, dispatched by the same transaction, and what of its held ones has ended

	Succeeded     bool          // another job of the event took over, and is looked at next
	NextAttemptAt time.Time     // Waiting: when, by Postgres' clock
	Age           time.Duration // since the delivery was accepted
}

// Record writes the outcome under the claim's fence, completes the attempt and dispatches the agent's next deliveries:
// one round trip, one commit. Plain outcomes that come while others are recorded share both (record_group.go). The
// caller puts the returned tasks into Redis. Calling it again after an error is harmless.
//
// ErrFenced: the claim was lost and nothing changed, but that a late Delivered completes its own attempt; a late
// Delivered of a delivery that is not final is no error: it ends it.
func (s *Store) Record(ctx context.Context, c *Claim, o Outcome) (rec Recorded, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "record delivery %s", c.ID)
	if err := o.checkStatus(); err != nil {
		return Recorded{}, err
	}

	r := recordRequest{c, o}
	if r.isPlain() {
		rec, err = s.records.do(ctx, r)
	} else {
		rec, err = s.recordAlone(ctx, r)
	}
	if err != nil {
		return Recorded{}, err // what was not committed was not dispatched
	}
	return rec, nil
}

func (s *Store) recordAlone(ctx context.Context, r recordRequest) (Recorded, error) {
	rec, err := s.recordOnce(ctx, r.claim, r.outcome)
	if err != nil && r.claim.week != "" && isMissingWeek(err) {
		r.claim.week = "" // through the partitioned table then
		rec, err = s.recordOnce(ctx, r.claim, r.outcome)
	}
	return rec, err
}

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

// onceClosed is a batch of the pool that may be closed again. The first Close gives the connection to others; of a batch
// that failed, a second one of pgx's own would still look into the connection's cache, which belongs to them by then.
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

// isMissingWeek tells that the table of an attempt was dropped by hand since the claim, or that only its parent may be
// written.
func isMissingWeek(err error) bool {
	var pe *pgconn.PgError
	const undefinedTable, insufficientPrivilege = "42P01", "42501"
	return errors.As(err, &pe) && (pe.Code == undefinedTable || pe.Code == insufficientPrivilege)
}

// Adopt records what an earlier attempt of the delivery is known to have led to, instead of making the one that c was
// given for: that one, which must not have called, is taken back, count and row; p's is completed, and the delivery
// moves as Record would move it. p.Outcome.Delay is what is left of the wait. Calling it again after an error is
// harmless.
//
// ErrFenced: as Record. ErrStale: p's attempt has an outcome already, or was free and taken back: nothing changed.
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
	// Rare, so it may cost more round trips than Record: what follows depends on what the first statement finds.
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
		o.Free = false // adopt.sql has taken back what is free
		b := &pgx.Batch{}
		s.queueRecord(b, c, o, p, &took)
		res := tx.SendBatch(ctx, b)
		defer res.Close()
		rec, err = readRecorded(res, c, o, p.Attempt)
		if fenced = errors.Is(err, ErrFenced); fenced {
			return nil // a late success may have completed its attempt: that is kept
		}
		return err
	})
	if fenced {
		return Recorded{}, ErrFenced
	}
	return rec, err
}

// checkStatus: an attempt cannot lead back to where it came from.
func (o Outcome) checkStatus() error {
	if !o.Status.Final() && o.Status != Waiting && o.Status != Held {
		return fmt.Errorf("%q is not what an attempt can lead to", o.Status)
	}
	return nil
}

// queueRecord queues what follows the agent's lock: the outcome of attempt p, and the dispatch of the agent's next.
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
	if o.NotAtPosition {
		s.queueSucceed(b, c)
	}
	if !o.SkipDispatch {
		b.Queue(statement("dispatch"), a.ChainID, a.Registry, a.ID, MaxDispatchedPerAgent, c.ID, c.No, s.strict)
	}
}

// recordStatement is record.sql with the week of attempt p, if that is c's own.
func recordStatement(c *Claim, p SpooledOutcome) string {
	text := statement("record")
	if c.week == "" || p.Attempt != c.Attempt || !p.StartedAt.Equal(c.StartedAt) {
		return text
	}
	return inWeek(text, c.week)
}

// readRecorded reads the answers to what queueRecord has queued, to the commit.
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
			return rec, fmt.Errorf("release what was mended meanwhile: %w", err)
		}
	}
	if o.NotAtPosition {
		if rec.Succeeded, next, err = readSucceeded(res, next); err != nil {
			return rec, err
		}
	}
	if !o.SkipDispatch {
		rows, _ := res.Query()
		if rec.Next, err = pgx.CollectRows(rows, scanTask); err != nil {
			return rec, fmt.Errorf("dispatch the next: %w", err)
		}
	}
	rec.Next = append(rec.Next, ended...)
	if err := res.Close(); err != nil { // the commit
		return rec, err
	}
	if fenced {
		return rec, ErrFenced
	}
	rec.Age = now.Sub(accepted)
	rec.addWait(c, o, attempt, n, next, bulk)
	return rec, nil
}

// addWait adds until when the delivery waits (nil: it does not), and the task n that it waits with.
func (rec *Recorded) addWait(c *Claim, o Outcome, attempt, n int, next *time.Time, bulk bool) {
	if next == nil {
		return
	}
	rec.NextAttemptAt = *next
	if o.Task && !rec.Succeeded { // whoever took over is dispatched in its turn, or by the reconciler
		rec.Task = &Task{ID: c.ID, N: n, Kind: cmp.Or(c.kind, string(c.Job.Kind)), Attempts: max(attempt, 1),
			Bulk: bulk, At: *next}
	}
}

// KeepSide is what is kept of what one side of a call said.
func KeepSide(raw json.RawMessage) json.RawMessage { return storable.JSON(raw, maxSideBytes) }

// nameOrNull is one of our own words, or what an agent calls something.
func nameOrNull(s string) *string { return nullIfEmpty(storable.Text(s, maxNameBytes)) }

// boundNames are a few of them.
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
