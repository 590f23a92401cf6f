package store

import (
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
// round trip, one commit. The caller puts the returned tasks into Redis. ErrFenced: the claim was lost, nothing changed.
func (s *Store) Record(ctx context.Context, c *Claim, o Outcome) (Recorded, error) {
	a := c.Agent()
	b := &pgx.Batch{}
	b.Queue(s.sql.record,
		c.ID, c.No, c.StartedAt, c.Attempt, o.Status, null(o.Reason), o.Delay, o.Task, o.Free, o.Called, o.Stage,
		null(text(o.Error, maxErrorBytes)), null(text(o.ToolName, maxNameBytes)), null(text(o.Endpoint, maxURLBytes)),
		null(o.FileVerification), null(o.FileSource),
		Storable(o.Arguments, maxSideBytes), Storable(o.Response, maxSideBytes), null(text(o.Protocol, maxNameBytes)),
		Storable(o.Result, maxSideBytes))
	b.Queue(s.sql.totals, a.ChainID, a.Registry, a.ID, o.Status, o.Status.Final(), o.AgentOK,
		null(text(o.AgentError, maxErrorBytes)), null(text(o.Endpoint, maxURLBytes)), null(text(o.Protocol, maxNameBytes)),
		Storable(o.ServerInfo, maxSideBytes))
	b.Queue(s.sql.dispatch, a.ChainID, a.Registry, a.ID, HandOut)

	var rec Recorded
	res := s.pool.SendBatch(ctx, b)
	defer res.Close()
	var n int
	var next *time.Time
	var created, now time.Time
	fenced := false
	switch err := res.QueryRow().Scan(&n, &next, &created, &now); {
	case errors.Is(err, pgx.ErrNoRows):
		fenced = true // the rest of the batch is harmless and still runs: it hands out what is free
	case err != nil:
		return rec, fmt.Errorf("record delivery %s: %w", c.ID, Plain(err))
	}
	if _, err := res.Exec(); err != nil {
		return rec, fmt.Errorf("record delivery %s: agent totals: %w", c.ID, Plain(err))
	}
	rows, err := res.Query()
	if err == nil {
		rec.Next, err = pgx.CollectRows(rows, scanTask)
	}
	if err == nil {
		err = res.Close()
	}
	if err != nil {
		return rec, fmt.Errorf("record delivery %s: hand out the next: %w", c.ID, Plain(err))
	}
	if fenced {
		return rec, ErrFenced
	}
	rec.Age = now.Sub(created)
	if next != nil {
		rec.NextAttemptAt = *next
		if o.Task {
			rec.Task = &Task{ID: c.ID, N: n, Kind: string(c.Job.Kind), Attempts: max(c.Attempt, 1), At: *next}
		}
	}
	return rec, nil
}

func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
