package storetest

import (
	"slices"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// TestHandOutOfEight checks that eight deliveries of an agent are dispatched, and that each recorded outcome dispatches the
// next, oldest first.
func (s *suite) TestHandOutOfEight() {
	const all = 12
	tasks := s.take(1, all)
	s.take(2, 3) // another agent has its own backlog
	var order []uuid.UUID
	for i := range all {
		order = append(order, Feedback(1, i+1).ID())
	}
	for i, t := range tasks {
		s.expect(t.ID == order[i] && t.N == 1 && t.Attempts == 0 && !t.Bulk && t.At.IsZero(), "task %d is %+v", i, t)
	}
	s.require(len(tasks) == ledger.MaxDispatchedPerAgent && s.handed() == ledger.MaxDispatchedPerAgent+3, "%d handed out",
		len(tasks))
	more := s.dispatchBacklog()
	s.expect(len(more) == 0, "a ninth: %v", more)
	ends := []ledger.Outcome{delivered, failed(time.Hour), {Status: outcome.Held, Reason: "auth_required", Free: true}, {Status: outcome.Rejected, Reason: "tool_error"}}
	for i, o := range ends {
		r := s.record(s.claim(tasks[i]), o)
		s.expect(len(r.Next) == 1 && r.Next[0].ID == order[ledger.MaxDispatchedPerAgent+i], "%s hands out %+v", o.Status,
			r.Next)
	}
	c := s.claim(tasks[len(ends)])
	r := s.record(c, delivered)
	s.expect(len(r.Next) == 0, "handed out %+v of an empty line", r.Next)
	s.is(order[all-1], outcome.Queued, "", 0, 0)
}

// TestBackfillStandsBehind checks that a backfill's deliveries stay in the lane bulk and use at most half of the agent's
// dispatch limit, and that younger deliveries outside the backfill are dispatched before them.
func (s *suite) TestBackfillStandsBehind() {
	const half = ledger.MaxDispatchedPerAgent / 2
	old := s.takeRange(1, 1, 20, true)
	s.require(len(old) == half && !slices.ContainsFunc(old, func(t ledger.Task) bool { return !t.Bulk }),
		"of a backfill %+v", old)
	more := s.dispatchBacklog()
	s.expect(len(more) == 0, "more than half of the places: %v", more)

	young := s.takeRange(1, 21, 30, false)
	s.require(len(young) == half && young[0].ID == Feedback(1, 21).ID() && !young[0].Bulk, "beside a backfill %+v",
		young)
	for _, known := range []ledger.Intake{{Job: Feedback(1, 26), Bulk: true}, {Job: Feedback(1, half+1)}} { // both in line
		out, tasks := s.send(known)
		s.expect(out.Verdict == ledger.Known && len(tasks) == 0, "%+v, %+v", out, tasks)
	}

	// When a delivery of the backfill ends, a new delivery is dispatched next.
	for i := range half {
		r := s.record(s.claim(old[i]), delivered)
		s.require(len(r.Next) == 1 && r.Next[0].ID == Feedback(1, 25+i).ID() && !r.Next[0].Bulk,
			"after one of the backfill %+v", r.Next)
		young = append(young, r.Next...)
	}
	var next []ledger.Task
	for len(young) > 0 {
		r := s.record(s.claim(young[0]), delivered)
		for _, t := range r.Next {
			if t.Bulk {
				next = append(next, t)
			} else {
				young = append(young, t)
			}
		}
		young = young[1:]
	}
	s.require(len(next) == half && next[0].ID == Feedback(1, half+1).ID(), "when nothing else was in line %+v", next)

	// Waits, with a task or without, and lost tasks do not change the lane.
	wait := s.record(s.claim(next[0]), failed(time.Minute))
	s.expect(wait.Task != nil && wait.Task.Bulk && wait.Task.Attempts == 1, "a wait: %+v", wait.Task)
	free := s.record(s.claim(next[1]), notYet(time.Minute))
	s.expect(free.Task != nil && free.Task.Bulk, "a wait that costs nothing: %+v", free.Task)
	stays := failed(time.Hour)
	stays.Task = false
	s.record(s.claim(next[2]), stays)
	s.Advance(2 * time.Minute)
	late := s.tasks(s.Overdue(s.Context(), time.Minute, uuid.Nil, 100))
	again, ok, err := s.Redispatch(s.Context(), *wait.Task)
	s.expect(err == nil && ok && again.Bulk, "%+v, %v, %v", again, ok, err)
	born, _, err := s.Store.Clock(s.Context())
	s.must(err)
	s.Advance(time.Minute)
	lost := s.tasks(s.LostBefore(s.Context(), born.Add(30*time.Second), 100))
	s.Advance(time.Hour)
	due := s.dispatchDue()
	for what, tasks := range map[string][]ledger.Task{"late": late, "lost": lost, "due": due} {
		s.expect((len(tasks) > 0 || what == "due") &&
			!slices.ContainsFunc(tasks, func(t ledger.Task) bool { return !t.Bulk }), "%s: %+v", what, tasks)
	}
}

// TestKeptLine checks that SkipDispatch leaves the agent's next delivery in the backlog, and that the next Record
// dispatches two.
func (s *suite) TestKeptLine() {
	tasks := s.take(1, ledger.MaxDispatchedPerAgent+2)
	limited := notYet(time.Minute)
	limited.Reason, limited.SkipDispatch = "throttled", true
	r := s.record(s.claim(tasks[0]), limited)
	s.expect(len(r.Next) == 0 && r.Task != nil, "%+v", r)
	r = s.record(s.claim(tasks[1]), delivered)
	s.expect(len(r.Next) == 2, "handed out %+v; two places were free", r.Next)
}

// TestNoNinthPlace checks that a delivery whose wait is over returns to the backlog if its agent has no dispatch left, and
// is dispatched again when one of the dispatched deliveries ends. A backfill has half of the dispatches. Backlog does not
// count such agents towards its limit.
func (s *suite) TestNoNinthPlace() {
	for agent, places := range map[int]int{1: ledger.MaxDispatchedPerAgent, 2: ledger.MaxDispatchedPerAgent / 2} {
		before := s.handed()
		tasks := s.takeRange(agent, 1, places+1, agent == 2)
		wait := s.record(s.claim(tasks[0]), failed(time.Minute)) // dispatches the last one
		s.require(len(wait.Next) == 1 && s.handed()-before == places, "%+v", wait)
		s.Advance(time.Minute)
		s.refused(wait.Task.ID, wait.Task.N, "all places are taken")
		s.is(wait.Task.ID, outcome.Queued, "", 1, 1)
		s.refused(wait.Task.ID, wait.Task.N, "it went back into the line")

		lost := s.claim(s.takeOne(2 + agent))
		s.lose(lost)
		next := s.tasks(s.Backlog(s.Context(), 1))
		s.expect(len(next) == 1 && next[0].ID == lost.ID, "dispatched %+v", next)

		r := s.record(s.claim(tasks[1]), delivered)
		s.require(len(r.Next) == 1 && r.Next[0].ID == wait.Task.ID && r.Next[0].N == wait.Task.N+1 &&
			r.Next[0].Attempts == 1, "handed out %+v", r.Next)
		c := s.claim(r.Next[0])
		s.expect(c.Attempt == 2, "%+v", c)
		s.record(c, delivered) // otherwise its lease would expire with that of the next lost claim
	}
}

// TestRecordingCountsPlaces checks that waiting deliveries do not count towards the dispatch limit, and that they count
// again when they are claimed.
func (s *suite) TestRecordingCountsPlaces() {
	tasks := s.take(1, 3*ledger.MaxDispatchedPerAgent)
	var waits []ledger.Task
	for len(tasks) > 0 {
		r := s.record(s.claim(tasks[0]), failed(time.Minute))
		waits, tasks = append(waits, *r.Task), append(tasks[1:], r.Next...)
	}
	s.require(len(waits) == 3*ledger.MaxDispatchedPerAgent, "%d wait", len(waits))
	s.Advance(time.Minute)
	running := 0
	for _, t := range waits {
		c, err := s.Claim(s.Context(), t.ID, t.N, lease)
		if s.must(err); c != nil {
			running++
		}
	}
	s.expect(running == ledger.MaxDispatchedPerAgent, "%d run at a time", running)
}

// TestLeasesRunOut checks that deliveries with an expired lease return to the backlog and get new tasks.
func (s *suite) TestLeasesRunOut() {
	tasks := s.take(1, 3)
	first, second := s.claim(tasks[0]), s.claim(tasks[1])
	s.Advance(lease / 2)
	alive := s.claim(tasks[2])
	s.expireLeases(10, 0, 0)
	s.Advance(lease/2 + time.Second)
	for range 2 { // limit 1: one per call
		s.expireLeases(1, 1, 0)
	}
	s.expireLeases(10, 0, 0)
	for _, c := range []*ledger.Claim{first, second} {
		d := s.is(c.ID, outcome.Queued, "", 1, 1)
		s.expect(d.Error != "" && d.History[0].Outcome == "", "%+v", d)
		s.refused(c.ID, c.N, "its task was the lost claim's")
	}
	s.is(alive.ID, outcome.Running, "", 1, 1)
	again := s.dispatchBacklog()
	s.expectDispatched(again, first.Job, second.Job)
	s.expect(again[0].N == 2 && again[1].N == 2 && again[0].Attempts == 1, "handed out %+v", again)
}

// TestLastLease checks that a delivery that crashes its workers is dead when its budget is used up, and that the outcomes
// of its attempts stay unknown.
func (s *suite) TestLastLease() {
	task := s.takeOne(1)
	for n := range attempts {
		c := s.claim(task)
		s.expect(c.Budget == n+1, "attempt %d of the budget, want %d", c.Budget, n+1)
		s.lose(c)
		if n < attempts-1 {
			task = s.nextTask()
		}
	}
	s.is(task.ID, outcome.Dead, "outcome_unknown", attempts, attempts)
	s.outcomes(task.ID, "", "", "")
	more := s.dispatchBacklog()
	s.expect(len(more) == 0, "%v", more)
	// A replay has a new budget.
	_, tasks := s.replays(false, 1, task.ID)
	c := s.claim(tasks[0])
	s.expect(c.Budget == 1 && c.Attempt == attempts+1 && c.Unfinished, "%+v", c)
	s.lose(c)
	s.is(task.ID, outcome.Queued, "", attempts+1, attempts+1)
}

// TestWaitsInTheStore checks a wait without a task: it ends with Due.
func (s *suite) TestWaitsInTheStore() {
	task := s.takeOne(1)
	o := failed(time.Hour)
	o.Task = false
	r := s.record(s.claim(task), o)
	s.require(r.Task == nil && !r.NextAttemptAt.IsZero(), "%+v", r)
	for range 3600/59 - 1 {
		s.Advance(59 * time.Second)
	}
	early := s.dispatchDue()
	s.require(len(early) == 0, "handed out early: %+v", early)
	for _, n := range []int{task.N, task.N + 1} {
		s.refused(task.ID, n, "the wait is in the store")
	}
	asked := s.tasks(s.Overdue(s.Context(), 0, uuid.Nil, 10))
	s.expect(len(asked) == 0, "Redis is asked for what it never had: %v", asked)
	s.Advance(2 * time.Minute)
	tasks := s.dispatchDue()
	s.require(len(tasks) == 1 && tasks[0].ID == task.ID && tasks[0].N == task.N+1 && tasks[0].Attempts == 1 &&
		tasks[0].At.IsZero(), "%+v", tasks)
	more := s.dispatchDue()
	s.expect(len(more) == 0, "handed out twice: %+v", more)
	c := s.claim(tasks[0])
	s.expect(c.Attempt == 2, "%+v", c)
}

// TestOverdueAndRedispatch checks which deliveries are overdue, and that each lost task is replaced once.
func (s *suite) TestOverdueAndRedispatch() {
	tasks := s.take(1, ledger.MaxDispatchedPerAgent+4)
	long := s.record(s.claim(tasks[0]), failed(time.Hour))    // dispatches the ninth
	short := s.record(s.claim(tasks[1]), failed(time.Minute)) // dispatches the tenth
	s.claim(tasks[2])
	page := func(late time.Duration) (all []ledger.Task) {
		for after := uuid.Nil; ; after = all[len(all)-1].ID {
			got := s.tasks(s.Overdue(s.Context(), late, after, 3))
			if all = append(all, got...); len(got) < 3 {
				return all
			}
		}
	}
	got := page(15 * time.Second)
	s.expect(len(got) == 0, "overdue at once: %v", got)
	s.Advance(20 * time.Second)
	got = page(15 * time.Second)
	s.expect(len(got) == ledger.MaxDispatchedPerAgent-1, "%d overdue, want what is queued in Redis", len(got))
	s.Advance(time.Minute)
	late := page(15 * time.Second)
	s.require(len(late) == ledger.MaxDispatchedPerAgent &&
		slices.IsSortedFunc(late, func(a, b ledger.Task) int { return slices.Compare(a.ID[:], b.ID[:]) }),
		"%d overdue: %+v", len(late), late)
	for _, t := range late {
		s.expect(t.ID != long.Task.ID && t.ID != tasks[2].ID, "%+v is not late", t)
		again, ok, err := s.Redispatch(s.Context(), t)
		s.require(err == nil && ok && again.ID == t.ID && again.N == t.N+1 && again.Attempts == t.Attempts,
			"%+v, %v, %v", again, ok, err)
		_, ok, err = s.Redispatch(s.Context(), t)
		s.expect(!ok && err == nil, "a task was replaced twice (%v)", err)
		s.refused(t.ID, t.N, "its task was replaced")
	}
	got = page(15 * time.Second)
	s.expect(len(got) == 0, "overdue after a new hand-out: %v", got)
	n := s.handed()
	s.expect(n == ledger.MaxDispatchedPerAgent-1, "%d queued in Redis", n)
	d := s.is(short.Task.ID, outcome.Waiting, "server_error", 1, 1)
	s.expect(d.Dispatch == short.Task.N+1, "a wait that is late has task %d", d.Dispatch)
	for _, t := range []ledger.Task{{ID: uuid.New(), N: 1}, tasks[2], {ID: Feedback(1, ledger.MaxDispatchedPerAgent+4).ID(), N: 0}} {
		_, ok, err := s.Redispatch(s.Context(), t)
		s.expect(!ok && err == nil, "%+v was dispatched again (%v)", t, err)
	}
}

// TestLostBefore checks that deliveries get new tasks after Redis lost its data, and that waits keep their time.
func (s *suite) TestLostBefore() {
	tasks := s.take(1, ledger.MaxDispatchedPerAgent+2)
	wait := s.record(s.claim(tasks[0]), failed(10*time.Minute))
	o := failed(time.Hour)
	o.Task = false
	s.record(s.claim(tasks[1]), o) // without a task in Redis
	s.claim(tasks[2])              // running, so it needs no task
	s.Advance(time.Minute)
	born, started, err := s.Store.Clock(s.Context())
	s.must(err)
	s.expect(!born.Before(started), "it is %v, and began at %v", born, started)
	s.Advance(time.Second)
	fresh := s.takeOne(2) // accepted after Redis came back
	all := func(limit int) (all []ledger.Task) {
		for {
			got := s.tasks(s.LostBefore(s.Context(), born, limit))
			if all = append(all, got...); len(got) < limit {
				return all
			}
		}
	}
	// If the store has its own clock, Advance made the rows older instead: born must move, too.
	if shift, _, err := s.Store.Clock(s.Context()); err != nil || shift.Sub(born) < time.Second {
		born = born.Add(-time.Second)
	}
	lost := all(3)
	s.expect(len(lost) == ledger.MaxDispatchedPerAgent, "%d handed out anew: %+v", len(lost), lost) // 7 queued, 1 waits
	for _, t := range lost {
		switch t.ID {
		case fresh.ID, tasks[1].ID, tasks[2].ID:
			s.Errorf("%+v was not lost", t)
		case wait.Task.ID:
			d := s.is(t.ID, outcome.Waiting, "server_error", 1, 1)
			s.expect(t.N == wait.Task.N+1 && t.At.Equal(*d.NextAttemptAt) && t.Attempts == 1,
				"the wait until %v became %+v", d.NextAttemptAt, t)
			s.early(t.ID, t.N)
		default:
			s.expect(t.N == 2 && t.At.IsZero(), "%+v", t)
			s.refused(t.ID, 1, "its task was replaced")
			s.claim(t)
		}
	}
	more := all(3)
	s.expect(len(more) == 0, "dispatched again: %+v", more)
	s.claim(fresh)
}
