package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Outcome is what one attempt led to. Strings are made storable and cut here.
type Outcome struct {
	Status Status
	Reason string        // of the closed list (DESIGN §4); empty for delivered
	Delay  time.Duration // Waiting: until the next attempt
	Task   bool          // Waiting: hand out a scheduled task now; false leaves the wait to the sweep
	Free   bool          // costs no attempt: count and row are taken back, unless Called
	Called bool          // a call was written, in whole or in part
	Stage  string        // how far the attempt came
	Error  string        // a sentence for people; never with a secret

	ToolName         string
	Endpoint         string
	FileVerification string
	FileSource       string
	Arguments        json.RawMessage // as sent
	Response         json.RawMessage // as received
	Result           json.RawMessage // what the delivery keeps of the answer
	Protocol         string

	AgentOK    bool            // the agent took the call
	AgentError string          // what the agent is to blame for
	ServerInfo json.RawMessage // as the agent introduced itself
}

// Recorded is the row after Record.
type Recorded struct {
	Task *Task  // the delivery's own next task, when Outcome.Task asked for one
	Next []Task // the agent's next deliveries, handed out by the same transaction

	NextAttemptAt time.Time     // Waiting: when, by Postgres' clock
	Age           time.Duration // since the delivery was accepted
}

// Record writes the outcome under the claim's fence, completes the attempt and hands out the agent's next deliveries: one
// round trip, one commit. The caller puts the returned tasks into Redis. Calling it again after an error is harmless.
//
// ErrFenced: the claim was lost and nothing changed, but that a late Delivered completes its own attempt; a late Delivered of
// a delivery that is not final is no error: it ends it.
func (s *Store) Record(ctx context.Context, c *Claim, o Outcome) (Recorded, error) {
	rec, err := s.record(ctx, c, o)
	if err != nil {
		err = fmt.Errorf("record delivery %s: %w", c.ID, Plain(err))
	}
	return rec, err
}

func (s *Store) record(ctx context.Context, c *Claim, o Outcome) (Recorded, error) {
	if !o.Status.Final() && o.Status != Waiting && o.Status != Held {
		return Recorded{}, fmt.Errorf("%q is not what an attempt can lead to", o.Status)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	a := c.Agent()
	b := &pgx.Batch{}
	b.Queue(s.sql.lockAgent, a.ChainID, a.Registry, a.ID)
	b.Queue(s.sql.record,
		c.ID, c.No, c.StartedAt, c.Attempt, o.Status, name(o.Reason), o.Delay, o.Task, o.Free, o.Called, text(o.Stage, maxNameBytes),
		null(text(o.Error, maxErrorBytes)), name(o.ToolName), null(text(o.Endpoint, maxURLBytes)),
		name(o.FileVerification), name(o.FileSource),
		Storable(o.Arguments, maxSideBytes), Storable(o.Response, maxSideBytes), name(o.Protocol),
		Storable(o.Result, maxSideBytes), o.AgentOK, null(text(o.AgentError, maxErrorBytes)), Storable(o.ServerInfo, maxSideBytes))
	b.Queue(s.sql.dispatch, a.ChainID, a.Registry, a.ID, HandOut, c.ID, c.No)

	var rec Recorded
	res := s.pool.SendBatch(ctx, b)
	defer res.Close()
	if _, err := res.Exec(); err != nil {
		return rec, fmt.Errorf("lock the agent: %w", err)
	}
	var n int
	var next *time.Time
	var accepted, now time.Time
	err := res.QueryRow().Scan(&n, &next, &accepted, &now)
	fenced := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !fenced {
		return rec, err
	}
	rows, err := res.Query()
	if err == nil {
		rec.Next, err = pgx.CollectRows(rows, scanTask)
	}
	if err == nil {
		err = res.Close() // the commit
	}
	switch {
	case err != nil:
		return Recorded{}, fmt.Errorf("hand out the next: %w", err)
	case fenced:
		return Recorded{}, ErrFenced
	}
	rec.Age = now.Sub(accepted)
	if next != nil {
		rec.NextAttemptAt = *next
		if o.Task {
			rec.Task = &Task{ID: c.ID, N: n, Kind: cmp.Or(c.kind, string(c.Job.Kind)), Attempts: max(c.Attempt, 1), At: *next}
		}
	}
	return rec, nil
}

// name is one of our own words, or what an agent calls something.
func name(s string) *string { return null(text(s, maxNameBytes)) }

func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
