package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
)

func ids1(id uuid.UUID) []uuid.UUID { return []uuid.UUID{id} }

// ending returns an outcome that leaves the delivery with the given status.
func ending(status Status, why outcome.Reason) Outcome {
	return Outcome{Status: status, Reason: why, Stage: "call", Called: true, Error: "because", Delay: time.Hour}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, tt := range []struct {
		o     Outcome
		job   string // the stored job; empty: unchanged
		force bool
		left  string // why it is not replayed; empty: it is replayed
	}{
		{o: ending(Dead, "timeout")},
		{o: ending(Rejected, "tool_error")},
		{o: ending(Skipped, "no_uri")},
		{o: ending(Cancelled, "reorg")},
		{o: ending(Held, "held_unknown")},
		{o: ending(Held, "auth_required")},
		{o: ending(Waiting, "server_error")},
		{o: delivered, force: true},
		{o: delivered, left: "it is delivered: replaying it calls the agent again and needs force"},
		{o: ending(Rejected, "invalid_job")},
		{o: ending(Rejected, "invalid_job"), job: "NULL", left: "it never was a valid job: enqueue a corrected one"},
		{o: ending(Dead, "timeout"), job: "NULL", left: "its job was dropped by retention: there is nothing left to deliver"},
		{o: delivered, job: "NULL", force: true, left: "its job was dropped by retention: there is nothing left to deliver"},
	} {
		t.Run(fmt.Sprint(tt.o.Status, " ", tt.o.Reason, " ", tt.force, tt.job), func(t *testing.T) {
			t.Parallel()
			task := acceptOne(t, s, feedback(100+i, 1))
			first := claim(t, s, task)
			o := tt.o
			o.FetchFailed = true
			record(t, s, first, o)
			exec(t, s, `UPDATE herald.deliveries SET accepted_at = now() - interval '40 days' WHERE id = $1`, task.ID)
			if tt.job != "" {
				exec(t, s, `UPDATE herald.deliveries SET job = `+tt.job+` WHERE id = $1`, task.ID)
			}
			before := read(t, s, task.ID)
			moved, left, tasks, err := s.Replay(t.Context(), ids1(task.ID), tt.force)
			if err != nil || left[task.ID] != tt.left || moved != 1-len(left) || len(toRun(tasks)) != moved || moved == 1 && tasks[1] != (Task{ID: task.ID, N: before.Dispatch, Ended: true}) {
				t.Fatalf("moved %d, left %q, tasks %+v, %v", moved, left, tasks, err)
			}
			d := read(t, s, task.ID)
			if tt.left != "" {
				if d.Status != before.Status || d.Dispatch != before.Dispatch || d.UpdatedAt != before.UpdatedAt {
					t.Errorf("%+v was changed to %+v", before, d)
				}
				return
			}
			waits := tt.o.Status == Waiting // it continues with its own budget and age
			if d.Status != Queued || d.Reason != "" || d.Error != "" || d.FinishedAt != nil || d.NextAttemptAt != nil || d.Attempts != 1 {
				t.Errorf("%+v", d)
			}
			if got := tasks[0]; got.ID != task.ID || got.N != d.Dispatch || got.Attempts != 1 || got.Bulk == waits {
				t.Errorf("task %+v", got)
			}
			c := claim(t, s, tasks[0])
			if c.Attempt != 2 || c.Replay == waits || c.Budget != map[bool]int{false: 1, true: 2}[waits] || c.FetchFailures != map[bool]int{false: 0, true: 1}[waits] {
				t.Errorf("%+v", c)
			}
			r := record(t, s, c, waiting(0))
			if r.Task.Bulk || (r.Age > time.Hour) != waits {
				t.Errorf("after an attempt: %+v, age %s", r.Task, r.Age)
			}
			if c = claim(t, s, *r.Task); c.Attempt != 3 || c.Replay == waits {
				t.Errorf("%+v", c)
			}
			record(t, s, c, delivered)
			if got := totals(t, s, 100+i); got["delivered"] == 0 {
				t.Errorf("counted %v", got)
			}
		})
	}
}

// TestReplayLeaves: dispatched and running deliveries are not changed, and unknown ids create nothing.
func TestReplayLeaves(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	c := claim(t, s, tasks[0])
	unknown := uuid.New()
	asked := []uuid.UUID{tasks[0].ID, tasks[1].ID, unknown, unknown}
	moved, left, more, err := s.Replay(t.Context(), asked, true)
	if err != nil || moved != 0 || len(more) != 0 || len(left) != 3 {
		t.Fatal(moved, left, more, err)
	}
	for _, id := range asked {
		if len(left[id]) < 20 {
			t.Errorf("%s: %q", id, left[id])
		}
	}
	record(t, s, c, delivered)
	if moved, left, more, err := s.Replay(t.Context(), nil, true); moved != 0 || len(left) != 0 || more != nil || err != nil {
		t.Error(moved, left, more, err)
	}
	if _, _, _, err := s.Replay(t.Context(), make([]uuid.UUID, maxMove+1), true); err == nil {
		t.Error("501 at once were taken")
	}
}

// TestReplayDispatchesExactly: concurrent replays dispatch at most eight deliveries of an agent. The others follow as
// these end.
func TestReplayDispatchesExactly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var all []uuid.UUID
	out, _ := accept(t, s, feedbacks(1, 1, 40)...)
	for _, a := range out {
		all = append(all, a.ID)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'dead', reason = 'timeout', handed_at = NULL, attempts = 11, finished_at = now()`)
	var wg sync.WaitGroup
	var moved, given atomic.Int32
	for range 4 {
		wg.Go(func() {
			n, _, tasks, err := s.Replay(t.Context(), all, false)
			if err != nil {
				t.Error(err)
			}
			moved.Add(int32(n))
			given.Add(int32(len(toRun(tasks))))
		})
	}
	wg.Wait()
	if moved.Load() != 40 || given.Load() != MaxDispatchedPerAgent || countDispatched(t, s) != MaxDispatchedPerAgent {
		t.Errorf("%d moved, %d tasks, %d dispatched", moved.Load(), given.Load(), countDispatched(t, s))
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE replays = 1 AND budget_base = 11`); n != 40 {
		t.Errorf("%d have a fresh budget", n)
	}
}

// TestReplaySettlesDoubt: attempts before a replay are not in doubt after it, so that a policy does not hold the
// delivery again.
func TestReplaySettlesDoubt(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	crashed(t, s, 1)
	c := next(t, s)
	record(t, s, c, Outcome{Status: Held, Reason: "held_unknown", Stage: "claim"})
	_, _, tasks, err := s.Replay(t.Context(), ids1(c.ID), false)
	if err != nil || len(toRun(tasks)) != 1 {
		t.Fatal(tasks, err)
	}
	c = claim(t, s, tasks[0])
	if !c.Unfinished || c.InDoubt || !c.Replay || c.Budget != 1 || c.Attempt != 3 {
		t.Errorf("%+v", c)
	}
	lapse(t, s, c)
	if c = next(t, s); !c.Unfinished || !c.InDoubt || c.Budget != 2 {
		t.Errorf("%+v", c)
	}
}

// TestBudget: an expired lease ends a delivery that has used all attempts of its present budget. Attempts before that
// budget do not count.
func TestBudget(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	exec(t, s, `UPDATE herald.deliveries SET attempts = 20, budget_base = 18, replays = 1`)
	c := claim(t, s, task)
	if c.Budget != 3 || c.Attempt != 21 {
		t.Fatalf("%+v", c)
	}
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second'`)
	if _, _, err := s.ExpireLeases(t.Context(), 10, 4); err != nil || read(t, s, c.ID).Status != Queued {
		t.Fatal(read(t, s, c.ID), err)
	}
	c = next(t, s)
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second'`)
	if _, _, err := s.ExpireLeases(t.Context(), 10, 4); err != nil {
		t.Fatal(err)
	}
	if d := read(t, s, c.ID); d.Status != Dead || d.Reason != "outcome_unknown" {
		t.Errorf("%+v", d)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 12)...)
	out, _ := accept(t, s, feedbacks(1, 13, 1)...)
	inLine := out[0].ID
	wait := record(t, s, claim(t, s, tasks[0]), waiting(time.Hour)).Task
	record(t, s, claim(t, s, tasks[1]), ending(Held, "auth_required"))
	running := claim(t, s, tasks[2])
	record(t, s, claim(t, s, tasks[3]), delivered)
	unknown := uuid.New()
	asked := []uuid.UUID{tasks[0].ID, tasks[1].ID, tasks[2].ID, tasks[3].ID, tasks[4].ID, inLine, unknown}
	moved, left, ended, err := s.Cancel(t.Context(), asked, false)
	if err != nil || moved != 4 || len(ended) != 3 || len(toRun(ended)) != 0 || len(left) != 3 || left[tasks[2].ID] == "" || left[tasks[3].ID] != "it has ended: it is delivered" || left[unknown] == "" {
		t.Fatal(moved, left, err)
	}
	for _, id := range []uuid.UUID{tasks[0].ID, tasks[1].ID, tasks[4].ID, inLine} {
		if d := read(t, s, id); d.Status != Cancelled || d.Reason != "operator" || d.FinishedAt == nil || d.NextAttemptAt != nil {
			t.Errorf("%+v", d)
		}
	}
	refused(t, s, wait.ID, wait.N, "it is cancelled")
	refused(t, s, tasks[4].ID, tasks[4].N, "it is cancelled")
	if again, err := s.Backlog(t.Context(), 10); err != nil || len(again) != 1 { // the slot of a queued delivery
		t.Error(again, err)
	}
	if d := read(t, s, running.ID); d.Status != Running {
		t.Errorf("%+v", d)
	}
	moved, left, _, err = s.Cancel(t.Context(), ids1(running.ID), true)
	if err != nil || moved != 1 || len(left) != 0 {
		t.Fatal(moved, left, err)
	}
	if err := s.Extend(t.Context(), running, lease); !errors.Is(err, ErrFenced) {
		t.Error(err)
	}
	for _, o := range []Outcome{waiting(time.Second), ending(Cancelled, "reorg"), delivered} {
		if _, err := s.Record(t.Context(), running, o); !errors.Is(err, ErrFenced) {
			t.Errorf("%s: %v", o.Status, err)
		}
	}
	if d := read(t, s, running.ID); d.Status != Cancelled || d.History[0].Outcome != "delivered" { // it completes its attempt only
		t.Errorf("%+v", d)
	}
	if got := totals(t, s, 1); got["cancelled"] != 5 || got["delivered"] != 1 {
		t.Errorf("counted %v", got)
	}
}

// TestCancelAgainstClaims: each delivery is either claimed or cancelled, never both, and nothing deadlocks.
func TestCancelAgainstClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var tasks []Task
	var all []uuid.UUID
	for agent := range 20 {
		_, got := accept(t, s, feedbacks(agent, 1, 4)...)
		tasks = append(tasks, got...)
	}
	for _, x := range tasks {
		all = append(all, x.ID)
	}
	var wg sync.WaitGroup
	var claimed, cancelled atomic.Int32
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < len(tasks); i += 4 {
				c, err := s.Claim(t.Context(), tasks[i].ID, tasks[i].N, lease)
				if err != nil {
					t.Error(err)
				}
				if c == nil {
					continue
				}
				claimed.Add(1)
				if _, err := s.Record(t.Context(), c, delivered); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for from := len(all); from > 0; from -= 10 {
				n, _, _, err := s.Cancel(t.Context(), all[from-10:from], false)
				if err != nil {
					t.Error(err)
				}
				cancelled.Add(int32(n))
			}
		})
	}
	wg.Wait()
	if n := claimed.Load() + cancelled.Load(); n != int32(len(all)) {
		t.Errorf("%d claimed and %d cancelled of %d", claimed.Load(), cancelled.Load(), len(all))
	}
}
