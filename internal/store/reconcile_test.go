package store

import (
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
