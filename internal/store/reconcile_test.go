package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/google/uuid"
)

func TestExpireLeases(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...)
	for _, task := range tasks {
		claim(t, s, task)
	}
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second' WHERE order_seq < 3`)
	exec(t, s, `UPDATE herald.deliveries SET attempts = 11 WHERE order_seq = 2`)
	if n, dead, err := s.ExpireLeases(t.Context(), 100, 11); n != 2 || dead != 1 || err != nil {
		t.Fatal(n, dead, err)
	}
	if n, _, err := s.ExpireLeases(t.Context(), 100, 11); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	first, last, alive := read(t, s, tasks[0].ID), read(t, s, tasks[1].ID), read(t, s, tasks[2].ID)
	if first.Status != Queued || first.Attempts != 1 || first.Error == "" || first.History[0].Outcome != "" {
		t.Errorf("%+v", first)
	}
	if last.Status != Dead || last.Reason != "outcome_unknown" || last.FinishedAt == nil {
		t.Errorf("%+v", last)
	}
	if alive.Status != Running {
		t.Errorf("%+v", alive)
	}
	if got := totals(t, s, 1); got["dead"] != 1 || len(got) != 1 {
		t.Errorf("counted %v", got)
	}
	refused(t, s, tasks[0].ID, tasks[0].N, "the task belongs to the lost claim")
	again, err := s.Backlog(t.Context(), 10)
	if err != nil || len(again) != 1 || again[0].N != 2 {
		t.Fatal(again, err)
	}
	if c := claim(t, s, again[0]); c.Attempt != 2 || !c.Called {
		t.Errorf("%+v", c)
	}
}

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

func TestOverdueAndRedispatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 12)...)
	w := record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	due := record(t, s, claim(t, s, tasks[1]), waiting(-time.Hour))
	claim(t, s, tasks[2])
	find := func(limit int) (all []Task) {
		after := uuid.Nil
		for {
			page, err := s.Overdue(t.Context(), 15*time.Second, after, limit)
			heraldtest.Must(t, err)
			all = append(all, page...)
			if len(page) < limit {
				return all
			}
			after = page[len(page)-1].ID
		}
	}
	if got := find(10); len(got) != 0 {
		t.Errorf("overdue at once: %v", got)
	}
	exec(t, s, `UPDATE herald.deliveries SET handed_at = handed_at - interval '1 minute'`)
	late := find(2)
	if len(late) != 8 { // five of the first eight, the two that followed, and the one whose wait is over
		t.Fatalf("%d overdue", len(late))
	}
	if !slices.IsSortedFunc(late, func(a, b Task) int { return bytes.Compare(a.ID[:], b.ID[:]) }) {
		t.Error("not in the cursor's order")
	}
	if slices.ContainsFunc(late, func(x Task) bool { return x.ID == w.Task.ID || x.ID == tasks[2].ID }) {
		t.Error("a wait that is not over, or a running one, counts as overdue")
	}
	for _, x := range late {
		again, ok, err := s.Redispatch(t.Context(), x)
		if err != nil || !ok || again.N != x.N+1 || again.ID != x.ID {
			t.Fatal(again, ok, err)
		}
		if _, ok, err := s.Redispatch(t.Context(), x); ok || err != nil {
			t.Error("dispatched again twice", err)
		}
		refused(t, s, x.ID, x.N, "the task was replaced")
		if x.ID == due.Task.ID && again.Attempts != 1 {
			t.Errorf("%+v", again)
		}
	}
	if _, ok, err := s.Redispatch(t.Context(), Task{ID: uuid.New(), N: 1}); ok || err != nil {
		t.Error(ok, err)
	}
	if got := find(10); len(got) != 0 {
		t.Errorf("still overdue: %v", got)
	}
	heraldtest.Equal(t, "dispatched", countDispatched(t, s), MaxDispatchedPerAgent)
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent := range 6 {
		accept(t, s, feedbacks(agent, 1, 10)...)
	}
	if tasks, err := s.Backlog(t.Context(), 10); err != nil || len(tasks) != 0 {
		t.Fatal(tasks, err) // deliveries are queued, but no slot is free
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'delivered', handed_at = NULL, finished_at = now() WHERE handed_at IS NOT NULL`)
	var wg sync.WaitGroup
	var got atomic.Int32
	for range 6 {
		wg.Go(func() {
			tasks, err := s.Backlog(t.Context(), 4)
			if err != nil {
				t.Error(err)
			}
			got.Add(int32(len(tasks)))
		})
	}
	wg.Wait()
	last, err := s.Backlog(t.Context(), 10)
	if err != nil || int(got.Load())+len(last) != 12 {
		t.Errorf("%d + %d dispatched, %v", got.Load(), len(last), err)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	record(t, s, claim(t, s, task), Outcome{Status: Held, Reason: "chain_unconfigured", Free: true})
	auth := acceptOne(t, s, feedback(2, 1))
	record(t, s, claim(t, s, auth), Outcome{Status: Held, Reason: "auth_required", Free: true})
	for _, tt := range []struct {
		chains []uint64
		want   int
	}{{nil, 0}, {[]uint64{1, 10}, 0}, {[]uint64{1, 8453}, 1}, {[]uint64{8453}, 0}} {
		ended, err := s.Release(t.Context(), tt.chains, false, 10)
		if len(ended) != tt.want || err != nil || tt.want == 1 && ended[0] != (Task{ID: task.ID, N: task.N, Ended: true}) {
			t.Errorf("%v: %+v, %v", tt.chains, ended, err)
		}
	}
	refused(t, s, task.ID, task.N, "its task was used before it was held")
	tasks, err := s.Backlog(t.Context(), 10)
	if err != nil || len(tasks) != 1 || tasks[0].ID != task.ID || tasks[0].N != 2 {
		t.Fatal(tasks, err)
	}
	claim(t, s, tasks[0])
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

func TestLeadership(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		led, err := s.Lead(t.Context(), func(context.Context) error { close(inside); <-leave; return errors.New("reconciling failed") })
		if !led || err == nil || err.Error() != "reconciling failed" {
			t.Error(led, err)
		}
	})
	<-inside
	never := func(context.Context) error { t.Error("two lead"); return nil }
	if led, err := s.Lead(t.Context(), never); led || err != nil {
		t.Error(led, err)
	}
	close(leave)
	wg.Wait()
	led, err := s.Lead(t.Context(), func(context.Context) error { return nil })
	if !led || err != nil {
		t.Errorf("the lock was not given back: %v, %v", led, err)
	}
	// Leadership also ends when the leader's connection dies.
	led, err = s.Lead(t.Context(), func(ctx context.Context) error {
		exec(t, s, `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		return nil
	})
	if !led || err != nil {
		t.Error(led, err)
	}
	if led, err := s.Lead(t.Context(), func(context.Context) error { return nil }); !led || err != nil {
		t.Error(led, err)
	}
	if n := s.PoolStat(); n.Max != 12 {
		t.Errorf("%+v", n)
	}
}
