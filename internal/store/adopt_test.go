package store

import (
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
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
	return ledger.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: c.StartedAt.Add(1234 * time.Millisecond), Epoch: c.Epoch, Outcome: o}
}

// TestAdoptLost: a success of an attempt before the lost claim ends the delivery, unless the delivery has ended. storetest
// has the failures, and a claim that is not lost.
func TestAdoptLost(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, c := range map[string]struct {
		lose   func(old, now *ledger.Claim)
		want   error
		status outcome.Status
	}{
		"expired": {func(_, now *ledger.Claim) { lapse(t, s, now) }, nil, outcome.Delivered},
		"cancelled": {func(_, now *ledger.Claim) {
			if n, _, _, err := s.Cancel(t.Context(), ids1(now.ID), true); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}, ledger.ErrFenced, outcome.Cancelled},
		"a late success": {func(old, _ *ledger.Claim) { record(t, s, old, delivered) }, ledger.ErrFenced, outcome.Delivered},
	} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			old := crashed(t, s, 1)
			now := next(t, s)
			c.lose(old, now)
			if _, err := s.Adopt(t.Context(), now, pastOf(old, delivered)); !errors.Is(err, c.want) {
				t.Error(err)
			}
			d := read(t, s, now.ID)
			if d.Status != c.status || d.Attempts != 2 || len(d.History) != 2 || d.History[0].Outcome != "delivered" || d.History[1].Outcome != "" {
				t.Errorf("%+v", d)
			}
			heraldtest.Equal(t, "counted", totals(t, s, 1), map[string]int{string(c.status): 1})
		})
	}
}

// TestAdoptAfterCredential: a worker spools that it holds a delivery for lack of a credential, and dies. If the epoch was
// raised since that attempt's claim, as storing a credential does, the delivery is released, and otherwise not.
func TestAdoptAfterCredential(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent, want := range map[int]outcome.Status{1: outcome.Held, 2: outcome.Queued} {
		old := crashed(t, s, agent)
		if want == outcome.Queued {
			exec(t, s, `UPDATE herald.agents SET epoch = epoch + 1 WHERE agent_id = $1`, agent)
		}
		refused := ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Called: true, Stage: "call"}
		if _, err := s.Adopt(t.Context(), next(t, s), pastOf(old, refused)); err != nil {
			t.Error(err)
		}
		heraldtest.Equal(t, "the status", read(t, s, old.ID).Status, want)
	}
}
