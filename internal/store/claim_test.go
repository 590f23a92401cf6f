package store

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

func TestClaimHasOneWinner(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(42, 1))
	var wg sync.WaitGroup
	var won atomic.Pointer[ledger.Claim]
	var winners atomic.Int32
	for range 40 {
		wg.Go(func() {
			c, err := s.Claim(t.Context(), task.ID, task.N, lease)
			if err != nil {
				t.Error(err)
			}
			if c != nil {
				winners.Add(1)
				won.Store(c)
			}
		})
	}
	wg.Wait()
	if winners.Load() != 1 {
		t.Fatalf("%d claims were given", winners.Load())
	}
	c := won.Load()
	if c.Attempt != 1 || c.Job.Tag1 != "uptime" || c.Agent() != agentNamed("42") || !c.Enabled || c.Called || c.LeaseUntil.Sub(c.StartedAt) != lease {
		t.Errorf("claim %+v", c)
	}
	d := read(t, s, task.ID)
	if d.Status != outcome.Running || d.Attempts != 1 || len(d.History) != 1 || d.History[0].Outcome != "" || d.History[0].Stage != "claim" {
		t.Errorf("row %+v", d)
	}
}

func TestClaimNumberFences(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	in := feedbacks(42, 1, 10)
	_, tasks := accept(t, s, in...)
	old := claim(t, s, tasks[0])
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second' WHERE id = $1`, old.ID)
	if err := s.Extend(t.Context(), old, lease); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("a lease that ran out was renewed: %v", err)
	}
	if n, _, err := s.ExpireLeases(t.Context(), 100, 11); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	before := read(t, s, old.ID)
	for _, o := range []ledger.Outcome{waiting(time.Second), {Status: outcome.Dead, Reason: "timeout", AgentError: "x"}, {Status: outcome.Held, Reason: "auth_required", Free: true},
		{Status: outcome.Skipped, Reason: "no_uri"}, {Status: outcome.Rejected, Reason: "tool_error", Called: true}} {
		if r, err := s.Record(t.Context(), old, o); !errors.Is(err, ledger.ErrFenced) || r.Task != nil || r.Next != nil {
			t.Errorf("%s under a lost claim: %+v, %v", o.Status, r, err)
		}
	}
	after := read(t, s, old.ID)
	if after.Status != outcome.Queued || after.Attempts != 1 || after.History[0].Outcome != "" || after.UpdatedAt != before.UpdatedAt {
		t.Errorf("a lost claim changed the row: %+v", after)
	}
	if got := totals(t, s, 42); len(got) != 0 {
		t.Errorf("a lost claim was counted: %v", got)
	}
	if e := value[*string](t, s, `SELECT last_error FROM herald.agents`); e != nil {
		t.Errorf("a lost claim blamed the agent: %s", *e)
	}
	if n := countDispatched(t, s); n != 7 {
		t.Errorf("%d dispatched: a lost claim has nobody to give the tasks to", n)
	}
	// Another worker claims the row, so the first claim number is invalid.
	again, err := s.Backlog(t.Context(), 10)
	if err != nil || len(again) != 1 || again[0].ID != old.ID || again[0].N != old.N+1 {
		t.Fatal(again, err)
	}
	now := claim(t, s, again[0])
	if !now.Called || now.Attempt != 2 || now.No <= old.No {
		t.Errorf("second claim %+v", now)
	}
	if _, err := s.Record(t.Context(), old, ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error"}); !errors.Is(err, ledger.ErrFenced) {
		t.Error(err)
	}
	if err := s.Extend(t.Context(), now, time.Hour); err != nil || time.Until(now.LeaseUntil) < 50*time.Minute {
		t.Errorf("%v, until %v", err, now.LeaseUntil)
	}
	record(t, s, now, delivered)
	record(t, s, now, delivered) // as if the first answer had been lost
	if got := totals(t, s, 42); got["delivered"] != 1 || len(got) != 1 {
		t.Errorf("counted %v", got)
	}
}

// TestUnreadableJob: the outcome of a row with an unreadable job is recorded, and its agent's next deliveries are
// dispatched.
func TestUnreadableJob(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, stored := range map[string]string{"edited": `'{"agentId": 12}'`, "null": `'null'`, "dropped": `NULL`, "another shape": `'[1]'`} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			_, tasks := accept(t, s, feedbacks(42, 1, 9)...)
			exec(t, s, `UPDATE herald.deliveries SET job = `+stored+` WHERE id = $1`, tasks[0].ID)
			c, err := s.Claim(t.Context(), tasks[0].ID, tasks[0].N, lease)
			if c == nil || !errors.Is(err, ledger.ErrUnreadableJob) {
				t.Fatal(c, err)
			}
			if c.Agent() != agentNamed("42") || c.Key == "" {
				t.Errorf("claim %+v", c)
			}
			r := record(t, s, c, ledger.Outcome{Status: outcome.Rejected, Reason: "invalid_job", Stage: "claim", Error: err.Error()})
			if len(r.Next) != 1 {
				t.Errorf("dispatched %+v", r.Next)
			}
			if d := read(t, s, c.ID); d.Status != outcome.Rejected || d.History[0].Reason != "invalid_job" {
				t.Errorf("%+v", d)
			}
			if got := totals(t, s, 42); got["rejected"] != 1 {
				t.Errorf("counted %v", got)
			}
			// Enqueueing the same event again replaces the row under its key, because that row was never readable.
			if out, _ := accept(t, s, feedbacks(42, 1, 1)...); out[0].Verdict != ledger.Accepted {
				t.Errorf("%+v", out)
			}
		})
	}
}
