package store

import (
	"context"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestExpire(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 5)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true})
	record(t, s, claim(t, s, tasks[2]), delivered)
	claim(t, s, tasks[3])
	if n, err := s.Expire(t.Context(), time.Hour, 100); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	exec(t, s, `UPDATE herald.deliveries SET accepted_at = now() - interval '2 hours'`)
	if n, err := s.Expire(t.Context(), time.Hour, 2); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := s.Expire(t.Context(), time.Hour, 100); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for i, want := range []outcome.Status{outcome.Dead, outcome.Dead, outcome.Delivered, outcome.Running, outcome.Dead} {
		if d := read(t, s, tasks[i].ID); d.Status != want || (want == outcome.Dead && (d.Reason != "expired" || d.FinishedAt == nil)) {
			t.Errorf("%d: %s %s, want %s", i, d.Status, d.Reason, want)
		}
	}
	if got := totals(t, s, 1); got["dead"] != 3 || got["delivered"] != 1 {
		t.Errorf("counted %v", got)
	}
}

// TestLostLeaseGivesUpItsTurn: an earlier delivery arrives while a later one of its ordering key has the turn. The worker
// of the later one dies. The earlier delivery is dispatched, and then the later one.
func TestLostLeaseGivesUpItsTurn(t *testing.T) {
	t.Parallel()
	for name, verified := range map[string]bool{"verified": true, "not verified": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.StrictOrder = true
			if verified {
				s = newVerifiedStore(t)
				s.StrictOrder = true
			}
			bind := func(c *ledger.Claim) *ledger.Claim {
				if verified {
					heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: c.Job, Source: c.Source}))
				}
				return c
			}
			c := bind(claim(t, s, acceptOne(t, s, feedback(1, 5))))
			if _, tasks := accept(t, s, ledger.Intake{Job: feedback(1, 4)}); verified {
				record(t, s, bind(claim(t, s, tasks[0])), ledger.Outcome{Status: outcome.Waiting, Reason: "behind_earlier", Free: true,
					NoTurn: true, Stage: "check", Delay: time.Second, Task: true})
			}
			lapse(t, s, c)
			dispatched := func() ledger.Task {
				t.Helper()
				_, _, err := s.ExpireLeases(t.Context(), 100, 11)
				heraldtest.Must(t, err)
				tasks, err := s.Backlog(t.Context(), 100)
				heraldtest.Must(t, err)
				if len(tasks) != 1 {
					t.Fatalf("dispatched: %v", tasks)
				}
				return tasks[0]
			}
			first := dispatched()
			second := record(t, s, bind(claim(t, s, first)), delivered).Next
			if first.ID != feedback(1, 4).ID() || len(second) != 1 || second[0].ID != feedback(1, 5).ID() {
				t.Errorf("dispatched: %v, then %v", first, second)
			}
		})
	}
}

// TestReconcilesInParts: ExpireLeases and Backlog read a part of the agents in a call, because strangers can make very
// many. The next calls read the others, and then the first ones again.
func TestReconcilesInParts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.leasePart, s.linePart = 2, 2
	var first, last []ledger.Task
	for _, agent := range []int{1, 2, 3, 10, 11} { // as text, they have another order
		_, tasks := accept(t, s, feedbacks(agent, 1, ledger.MaxDispatchedPerAgent+1)...)
		first, last = append(first, tasks[0]), append(last, tasks[1])
	}
	expire := func(limit int) (n int) {
		t.Helper()
		n, _, err := s.ExpireLeases(t.Context(), limit, 11)
		heraldtest.Must(t, err)
		return n
	}
	backlog := func() (n int) {
		t.Helper()
		tasks, err := s.Backlog(t.Context(), 100)
		heraldtest.Must(t, err)
		return len(tasks)
	}
	// The third call finds no agent in the last part, so it begins again.
	heraldtest.Equal(t, "dispatched while all places are taken", []int{backlog(), backlog(), backlog(), backlog()}, []int{0, 0, 0, 0})
	for _, task := range []ledger.Task{first[0], last[0], first[4]} {
		claim(t, s, task)
	}
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s' WHERE status = 'running'`)
	// A part has all deliveries of its agents. A call whose limit is reached does not leave its part.
	heraldtest.Equal(t, "expired", []int{expire(1), expire(1), expire(1), expire(9), expire(9), expire(9), expire(9)}, []int{1, 1, 0, 0, 0, 0, 1})
	heraldtest.Equal(t, "dispatched", []int{backlog(), backlog(), backlog(), backlog()}, []int{1, 2, 0, 0})
	claim(t, s, first[1])
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s' WHERE status = 'running'`)
	heraldtest.Equal(t, "expired again", []int{expire(9), expire(9), expire(9)}, []int{0, 0, 1})
}

// TestBacklogReadsAllAgents: a part that has all agents begins with the first one in each call.
func TestBacklogReadsAllAgents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, one := accept(t, s, feedbacks(1, 1, ledger.MaxDispatchedPerAgent+1)...)
	_, two := accept(t, s, feedbacks(2, 1, ledger.MaxDispatchedPerAgent+1)...)
	for _, lost := range [][]ledger.Task{one[:1], {one[1], two[0]}} {
		for _, task := range lost {
			claim(t, s, task)
		}
		exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s' WHERE status = 'running'`)
		_, _, err := s.ExpireLeases(t.Context(), 100, 11)
		heraldtest.Must(t, err)
		tasks, err := s.Backlog(t.Context(), 100)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "dispatched", len(tasks), len(lost))
	}
}

// TestBacklogContinuesAfterError: a call that fails does not change where the next one begins.
func TestBacklogContinuesAfterError(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.linePart = 1
	accept(t, s, feedbacks(1, 1, ledger.MaxDispatchedPerAgent+1)...)
	_, tasks := accept(t, s, feedbacks(2, 1, ledger.MaxDispatchedPerAgent+1)...)
	claim(t, s, tasks[0])
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s' WHERE status = 'running'`)
	_, _, err := s.ExpireLeases(t.Context(), 100, 11)
	heraldtest.Must(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, call := range []struct {
		ctx        context.Context
		dispatched int
	}{{t.Context(), 0}, {ended, 0}, {t.Context(), 1}} {
		tasks, err := s.Backlog(call.ctx, 100)
		heraldtest.Equal(t, "fails", err != nil, call.ctx == ended)
		heraldtest.Equal(t, "dispatched", len(tasks), call.dispatched)
	}
}
