package store

import (
	"testing"
	"time"
)

func TestExpire(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 5)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), Outcome{Status: Held, Reason: "auth_required", Free: true})
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
	for i, want := range []Status{Dead, Dead, Delivered, Running, Dead} {
		if d := read(t, s, tasks[i].ID); d.Status != want || (want == Dead && (d.Reason != "expired" || d.FinishedAt == nil)) {
			t.Errorf("%d: %s %s, want %s", i, d.Status, d.Reason, want)
		}
	}
	if got := totals(t, s, 1); got["dead"] != 3 || got["delivered"] != 1 {
		t.Errorf("counted %v", got)
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 12)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), waiting(-time.Hour))
	record(t, s, claim(t, s, tasks[2]), delivered)
	record(t, s, claim(t, s, tasks[3]), Outcome{Status: Held, Reason: "auth_required", Free: true})
	claim(t, s, tasks[4])
	d, err := s.Depth(t.Context())
	if err != nil || d.ByStatus[Queued] != 7 || d.ByStatus[Waiting] != 2 || d.ByStatus[Held] != 1 || d.ByStatus[Running] != 1 || len(d.ByStatus) != 4 {
		t.Errorf("%+v, %v", d, err)
	}
	if d.Overdue < time.Hour || d.Overdue > time.Hour+time.Minute {
		t.Errorf("overdue %s", d.Overdue)
	}
}
