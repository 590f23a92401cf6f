package store

import (
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// crashed returns a claim whose worker died: its lease expired, and the delivery returned to the backlog.
func crashed(t *testing.T, s *Store, agent int) *ledger.Claim {
	t.Helper()
	c := claim(t, s, acceptOne(t, s, feedback(agent, 1)))
	lapse(t, s, c)
	return c
}

func lapse(t *testing.T, s *Store, c *ledger.Claim) {
	t.Helper()
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second' WHERE id = $1`, c.ID)
	if n, _, err := s.ExpireLeases(t.Context(), 10, 11); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

// next claims the only delivery in the backlog.
func next(t *testing.T, s *Store) *ledger.Claim {
	t.Helper()
	tasks, err := s.Backlog(t.Context(), 10)
	if err != nil || len(tasks) != 1 {
		t.Fatal(tasks, err)
	}
	return claim(t, s, tasks[0])
}

// pastOf returns the spooled outcome o of c's worker, recorded 1.234 s after the attempt began.
func pastOf(c *ledger.Claim, o ledger.Outcome) ledger.SpooledOutcome {
	return ledger.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: c.StartedAt.Add(1234 * time.Millisecond), Outcome: o}
}

func TestAdoptLost(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	t.Run("a lost claim changes nothing", func(t *testing.T) {
		emptyStore(t, s)
		old := crashed(t, s, 1)
		c := next(t, s)
		lapse(t, s, c)
		if r, err := s.Adopt(t.Context(), c, pastOf(old, waiting(time.Second))); !errors.Is(err, ledger.ErrFenced) || r.Task != nil || r.Next != nil {
			t.Errorf("%+v, %v", r, err)
		}
		d := read(t, s, c.ID)
		if d.Status != outcome.Queued || d.Attempts != 2 || len(d.History) != 2 || d.History[0].Outcome != "" || d.History[1].Outcome != "" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("but a success ends the delivery", func(t *testing.T) {
		emptyStore(t, s)
		old := crashed(t, s, 1)
		c := next(t, s)
		lapse(t, s, c)
		if _, err := s.Adopt(t.Context(), c, pastOf(old, delivered)); err != nil {
			t.Error(err)
		}
		if d := read(t, s, c.ID); d.Status != outcome.Delivered || d.History[0].Outcome != "delivered" || d.History[1].Outcome != "" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("a cancelled one stays so", func(t *testing.T) {
		emptyStore(t, s)
		old := crashed(t, s, 1)
		c := next(t, s)
		if n, _, _, err := s.Cancel(t.Context(), ids1(c.ID), true); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := s.Adopt(t.Context(), c, pastOf(old, delivered)); !errors.Is(err, ledger.ErrFenced) {
			t.Error(err)
		}
		if d := read(t, s, c.ID); d.Status != outcome.Cancelled || d.Reason != "operator" || d.History[0].Outcome != "delivered" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("the old attempt was completed by a late success", func(t *testing.T) {
		emptyStore(t, s)
		old := crashed(t, s, 1)
		c := next(t, s)
		record(t, s, old, delivered)
		for _, o := range []ledger.Outcome{delivered, waiting(time.Second)} {
			if _, err := s.Adopt(t.Context(), c, pastOf(old, o)); !errors.Is(err, ledger.ErrFenced) {
				t.Errorf("%s: %v", o.Status, err)
			}
		}
		if d := read(t, s, c.ID); d.Status != outcome.Delivered || d.Attempts != 2 || len(d.History) != 2 {
			t.Errorf("%+v", d)
		}
		if got := totals(t, s, 1); got["delivered"] != 1 {
			t.Errorf("counted %v", got)
		}
	})
}

// TestAdoptOutOfTurn: a free attempt keeps its number when later attempts exist.
func TestAdoptOutOfTurn(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	one := crashed(t, s, 1)
	two := next(t, s)
	lapse(t, s, two)
	c := next(t, s)
	o := ledger.Outcome{Status: outcome.Waiting, Reason: "throttled", Stage: "call", Free: true, Task: true}
	if _, err := s.Adopt(t.Context(), c, pastOf(one, o)); err != nil {
		t.Fatal(err)
	}
	d := read(t, s, c.ID)
	if d.Attempts != 2 || len(d.History) != 2 || d.History[0].Outcome != "waiting" || d.History[1].Outcome != "" {
		t.Errorf("%+v", d)
	}
	if c = claim(t, s, ledger.Task{ID: c.ID, N: d.Dispatch}); c.Attempt != 3 || !c.Unfinished {
		t.Errorf("%+v", c)
	}
}
