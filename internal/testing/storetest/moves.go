package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// past returns the outcome o of c's attempt as a worker spools it: the attempt has ended, but its outcome could not be
// recorded.
func past(c *ledger.Claim, o ledger.Outcome) ledger.SpooledOutcome {
	return ledger.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: c.StartedAt.Add(time.Second), Outcome: o}
}

func (s *suite) adopted(c *ledger.Claim, p ledger.SpooledOutcome) ledger.Recorded {
	s.Helper()
	r, err := s.Adopt(s.Context(), c, p)
	s.must(err)
	return r
}

// TestAdopt checks that Adopt records the outcome of a lost attempt, and undoes the attempt of its own claim.
func (s *suite) TestAdopt() {
	for i, tt := range []struct {
		o        ledger.Outcome
		attempts int
		outcomes []string
	}{
		{delivered, 1, []string{"delivered"}},
		{failed(time.Minute), 1, []string{"waiting"}},
		{ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error", Called: true, Stage: "call"}, 1, []string{"rejected"}},
		{ledger.Outcome{Status: outcome.Held, Reason: "held_unknown", Called: true, Stage: "call"}, 1, []string{"held"}},
		{ledger.Outcome{Status: outcome.Dead, Reason: "server_error", Called: true, Stage: "call"}, 1, []string{"dead"}},
		{notYet(time.Minute), 0, nil}, // free: its own count is undone, too
	} {
		tasks := s.take(i+1, ledger.MaxDispatchedPerAgent+1)
		old := s.claim(tasks[0])
		s.lose(old)
		next := s.nextTask()
		c := s.claim(next)
		s.require(c.Unfinished && c.InDoubt, "%+v", c)
		first := s.adopted(c, past(old, tt.o))
		s.is(old.ID, tt.o.Status, tt.o.Reason, tt.attempts, tt.attempts)
		s.outcomes(old.ID, tt.outcomes...)
		h := s.read(old.ID).History
		s.expect(tt.attempts != 1 || h[0].Number == 1 && h[0].StartedAt.Equal(old.StartedAt) &&
			h[0].Reason == tt.o.Reason, "the adopted attempt is %+v", h)
		s.expect(len(first.Next) == 1, "%s hands out %+v", tt.o.Status, first.Next)
		s.expect(tt.o.Task == (first.Task != nil), "%s has the task %+v", tt.o.Status, first.Task)
		second := s.adopted(c, past(old, tt.o)) // the first answer was lost
		s.is(old.ID, tt.o.Status, tt.o.Reason, tt.attempts, tt.attempts)
		if first.Task == nil {
			continue
		}
		s.expect(second.Task != nil && second.Task.N == first.Task.N, "first %+v, second %+v", first.Task, second.Task)
		s.record(s.claim(tasks[1]), delivered) // so that seven other deliveries are dispatched
		s.Advance(time.Minute)
		c = s.claim(*first.Task)
		s.expect(!c.Unfinished && !c.InDoubt && c.Attempt == tt.attempts+1 && c.Budget == tt.attempts+1,
			"after a wait that was adopted: %+v", c)
		s.record(c, delivered)
	}
	// A free attempt with later ones is not undone: all attempts keep their numbers.
	free := s.claim(s.takeOne(50))
	s.lose(free)
	crashed := s.claim(s.nextTask())
	s.lose(crashed)
	s.adopted(s.claim(s.nextTask()), past(free, notYet(time.Minute)))
	s.is(free.ID, outcome.Waiting, "not_confirmed", 2, 2)
	s.outcomes(free.ID, "waiting", "")
	for _, status := range []outcome.Status{outcome.Running, outcome.Queued, ""} {
		c := s.claim(s.takeOne(100 + len(status)))
		_, err := s.Adopt(s.Context(), c, past(c, ledger.Outcome{Status: status}))
		s.expect(err != nil && !errors.Is(err, ledger.ErrFenced), "an attempt led to %q: %v", status, err)
	}
}

// TestAdoptWhatWasRecorded checks that Adopt refuses a spooled outcome as stale if its attempt already has an outcome, or
// does not exist. The claim for which Adopt was called stays valid.
func (s *suite) TestAdoptWhatWasRecorded() {
	task := s.takeOne(1)
	first := s.claim(task)
	r := s.record(first, failed(time.Minute))
	s.Advance(time.Minute)
	second := s.claim(*r.Task)
	s.lose(second)
	c := s.claim(s.nextTask())
	stale := past(first, ledger.Outcome{Status: outcome.Dead, Reason: "server_error", Called: true})
	_, err := s.Adopt(s.Context(), c, stale)
	s.expect(errors.Is(err, ledger.ErrStale), "an attempt that has an outcome got another: %v", err)
	gone := stale
	gone.Attempt, gone.StartedAt = 7, first.StartedAt.Add(-time.Hour)
	_, err = s.Adopt(s.Context(), c, gone)
	s.expect(errors.Is(err, ledger.ErrStale), "an attempt that is not there got an outcome: %v", err)
	s.is(task.ID, outcome.Running, "", 3, 3)
	s.outcomes(task.ID, "waiting", "", "")
	s.record(c, delivered)
	s.outcomes(task.ID, "waiting", "", "delivered")
}

// TestExpiry checks that Expire ends open deliveries by age, except running ones.
func (s *suite) TestExpiry() {
	tasks := s.take(1, 5)
	s.record(s.claim(tasks[0]), failed(time.Hour))
	s.heldBack(tasks[1])
	s.record(s.claim(tasks[2]), delivered)
	s.claim(tasks[3])
	expire := func(limit, want int) {
		s.Helper()
		n, err := s.Expire(s.Context(), time.Hour, limit)
		s.expect(n == want && err == nil, "%d expired (%v), want %d", n, err, want)
	}
	expire(10, 0)
	s.Advance(time.Hour + time.Second)
	expire(2, 2)
	expire(10, 1)
	expire(10, 0)
	for i, want := range []outcome.Status{outcome.Dead, outcome.Dead, outcome.Delivered, outcome.Running, outcome.Dead} {
		d := s.read(tasks[i].ID)
		s.expect(d.Status == want && (want != outcome.Dead || d.Reason == "expired" && d.FinishedAt != nil &&
			d.NextAttemptAt == nil), "%d is %s %s, want %s", i, d.Status, d.Reason, want)
	}
	s.refused(tasks[4].ID, tasks[4].N, "it has expired")
	// A replay has a new age.
	_, again := s.replays(false, 1, tasks[4].ID)
	expire(10, 0)
	s.claim(again[0])
}

// TestReleaseOfSettings checks that Release releases only deliveries whose setting is present.
func (s *suite) TestReleaseOfSettings() {
	task, auth, ar := s.takeOne(1), s.takeOne(2), s.takeOne(3)
	s.record(s.claim(task), ledger.Outcome{Status: outcome.Held, Reason: "chain_unconfigured", Free: true})
	s.heldBack(auth)
	s.record(s.claim(ar), ledger.Outcome{Status: outcome.Held, Reason: "gateway_unconfigured", Free: true})
	for _, tt := range []struct {
		chains  []uint64
		gateway bool
		want    int
	}{{nil, false, 0}, {[]uint64{1, 10}, false, 0}, {[]uint64{1, 8453}, false, 1}, {[]uint64{8453}, false, 0}} {
		ended := s.tasks(s.Release(s.Context(), tt.chains, tt.gateway, 10))
		s.expect(len(ended) == tt.want, "%v, gateway %t, releases %d, want %d", tt.chains, tt.gateway, len(ended), tt.want)
	}
	s.is(ar.ID, outcome.Held, "gateway_unconfigured", 0, 0)
	s.refused(task.ID, task.N, "it is in the line")
	next := s.nextTask()
	s.expect(next.ID == task.ID && next.N == task.N+1, "%+v", next)
	for want := 1; want >= 0; want-- {
		ended := s.tasks(s.Release(s.Context(), nil, true, 10))
		s.expect(len(ended) == want, "a gateway releases %v, want %d", ended, want)
	}
	next = s.nextTask()
	s.expect(next.ID == ar.ID && next.N == ar.N+1, "%+v", next)
	s.is(auth.ID, outcome.Held, "auth_required", 0, 0)
}

// TestOneLeads checks that Lead runs one function at a time and returns its error.
func (s *suite) TestOneLeads() {
	var inner bool
	leads, err := s.Lead(s.Context(), func(ctx context.Context) (err error) {
		inner, err = s.Lead(ctx, func(context.Context) error { return nil })
		return err
	})
	s.expect(leads && !inner && err == nil, "leads %v, and beside it %v, %v", leads, inner, err)
	fault := errors.New("a fault")
	_, err = s.Lead(s.Context(), func(context.Context) error { return fault })
	s.expect(errors.Is(err, fault), "%v", err)
	leads, err = s.Lead(s.Context(), func(context.Context) error { return nil })
	s.expect(leads && err == nil, "nobody leads any more: %v, %v", leads, err)
}

// end records the outcome o of a new delivery's first attempt, and returns the delivery's id.
func (s *suite) end(agent int, o ledger.Outcome) uuid.UUID {
	t := s.takeOne(agent)
	s.record(s.claim(t), o)
	return t.ID
}

// replays calls Replay, checks the number of replayed deliveries, and returns the reasons for the others and the tasks
// to run.
func (s *suite) replays(force bool, want int, ids ...uuid.UUID) (map[uuid.UUID]string, []ledger.Task) {
	s.Helper()
	left, tasks := s.moves(s.Replay, force, want, ids)
	return left, s.toRun(tasks, want)
}

// cancels calls Cancel, checks the number of cancelled deliveries, and returns the reasons for the others and the tasks
// that ended.
func (s *suite) cancels(force bool, want int, ids ...uuid.UUID) (map[uuid.UUID]string, []ledger.Task) {
	s.Helper()
	left, ended := s.moves(s.Cancel, force, want, ids)
	s.expect(len(s.toRun(ended, want)) == 0, "a cancellation hands out %+v", ended)
	return left, ended
}

func (s *suite) moves(move func(context.Context, []uuid.UUID, bool) (int, map[uuid.UUID]string, []ledger.Task, error),
	force bool, want int, ids []uuid.UUID) (map[uuid.UUID]string, []ledger.Task) {
	s.Helper()
	moved, left, tasks, err := move(s.Context(), ids, force)
	s.must(err)
	s.expect(moved == want && len(left) == len(ids)-want, "%d moved, %v left; want %d of %d", moved, left, want, len(ids))
	return left, tasks
}

// TestReplay checks the effect of a replay on deliveries with each status, and that a new budget begins while attempt
// numbers continue.
func (s *suite) TestReplay() {
	for i, o := range []ledger.Outcome{
		{Status: outcome.Dead, Reason: "server_error", Called: true},
		{Status: outcome.Rejected, Reason: "tool_error", Called: true},
		{Status: outcome.Skipped, Reason: "no_uri"},
		{Status: outcome.Held, Reason: "held_unknown", Called: true},
		{Status: outcome.Held, Reason: "auth_required", Free: true},
	} {
		id := s.end(i+1, o)
		before := s.read(id)
		_, tasks := s.replays(false, 1, id)
		d := s.is(id, outcome.Queued, "", before.Attempts, before.Attempts)
		s.require(len(tasks) == 1 && tasks[0].ID == id && tasks[0].N == before.Dispatch+1 && tasks[0].Bulk,
			"%s: %s, handed out %+v", o.Reason, d.Status, tasks)
		s.expect(d.Error == "", "the row still says %q", d.Error)
		c := s.claim(tasks[0])
		s.expect(c.Attempt == before.Attempts+1 && c.Budget == 1 && c.Replay && !c.Unfinished, "%s: %+v", o.Reason, c)
		r := s.record(c, failed(time.Minute))
		s.expect(!r.Task.Bulk, "the second attempt of a replay is %+v", r.Task)
		s.Advance(time.Minute)
		c = s.claim(*r.Task)
		s.expect(c.Attempt == before.Attempts+2 && c.Budget == 2 && c.Replay, "%s: %+v", o.Reason, c)
	}
	// A waiting delivery stops waiting and keeps its budget.
	task := s.takeOne(10)
	r := s.record(s.claim(task), failed(time.Hour))
	_, tasks := s.replays(false, 1, task.ID)
	s.require(len(tasks) == 1 && tasks[0].N == r.Task.N+1, "%+v", tasks)
	s.refused(task.ID, r.Task.N, "its task was replaced")
	s.claim(tasks[0])
	// Replays go through the backlog like all deliveries.
	var ids []uuid.UUID
	for _, t := range s.take(11, ledger.MaxDispatchedPerAgent) {
		s.record(s.claim(t), ledger.Outcome{Status: outcome.Dead, Reason: "timeout"})
		ids = append(ids, t.ID)
	}
	s.Advance(time.Second)
	others := s.takeRange(11, ledger.MaxDispatchedPerAgent+1, ledger.MaxDispatchedPerAgent+3, false)
	_, tasks = s.replays(false, ledger.MaxDispatchedPerAgent, ids...)
	s.expect(len(tasks) == ledger.MaxDispatchedPerAgent-len(others), "%d of %d places were free, %d handed out",
		ledger.MaxDispatchedPerAgent-len(others), ledger.MaxDispatchedPerAgent, len(tasks))
}

// TestNotReplayed checks which deliveries Replay leaves unchanged.
func (s *suite) TestNotReplayed() {
	filtered := s.end(5, ledger.Outcome{Status: outcome.Skipped, Reason: "filtered", Free: true})
	s.is(filtered, outcome.Skipped, "filtered", 0, 0)
	done, queued, running := s.end(1, delivered), s.takeOne(2), s.takeOne(3)
	s.claim(running)
	invalid := Feedback(4, 1)
	s.send(ledger.Intake{Job: invalid, Refused: "no good"})
	left, tasks := s.replays(false, 0, done, queued.ID, running.ID, invalid.ID(), uuid.New(), filtered)
	s.expect(len(tasks) == 0, "handed out %+v", tasks)
	for id, why := range left {
		s.expect(why != "", "nobody says why %s stays", id)
	}
	left, _ = s.replays(true, 2, done, filtered, invalid.ID())
	s.expect(left[invalid.ID()] != "", "a job that is none was replayed: %v", left)
	s.is(done, outcome.Queued, "", 1, 1)
	s.claim(queued)
}

// TestFilteredAtAcceptance checks that a filtered event ends without a task, and does not delay the events after it. A
// response to it, a later feedback of its client and a forced replay are dispatched.
func (s *suite) TestFilteredAtAcceptance() {
	feedback, response, later := Feedback(1, 1), Feedback(1, 1), Feedback(1, 2)
	response.Kind, response.Responder, response.TransactionHash, response.LogIndex = job.KindResponseAppended, common.Address{7}, common.Hash{7}, new(uint(1))
	answers, tasks := s.accept([]ledger.Intake{{Job: feedback, Filtered: "rule 1"}, {Job: response}, {Job: later}})
	a := answers[0]
	s.expect(a.Verdict == ledger.Accepted && a.Status == outcome.Skipped && len(tasks) == 2, "%+v, tasks %+v", answers,
		tasks)
	d := s.is(feedback.ID(), outcome.Skipped, "filtered", 0, 0)
	s.expect(d.Error == "rule 1" && d.Dispatch == 0 && d.FinishedAt != nil, "%+v", d)
	again, tasks := s.send(ledger.Intake{Job: feedback})
	s.expect(again.Verdict == ledger.Known && len(tasks) == 0, "%+v, tasks %+v", again, tasks)
	// If the agent has filters of its own, they decide at the check.
	p, _, err := policy.Parse([]byte(`{"onUnknown": "hold", "filters": [{"action": "deliver"}]}`), policy.Operator, nil)
	s.must(err)
	own, _, err := policy.Parse([]byte(`{"filters": [{"action": "skip"}]}`), policy.Own, nil)
	s.must(err)
	s.must(s.ReplacePolicy(s.Context(), Agent(2), policy.Operator, p))
	s.must(s.ReplacePolicy(s.Context(), Agent(2), policy.Own, own))
	answer, tasks := s.send(ledger.Intake{Job: Feedback(2, 1), Filtered: "rule 1"})
	s.require(answer.Status == outcome.Queued && len(tasks) == 1, "%+v, tasks %+v", answer, tasks)
	c := s.claim(tasks[0])
	s.expect(c.Policy.String() == p.String() && c.OwnPolicy.String() == own.String(), "%s, %s", c.Policy, c.OwnPolicy)
	_, tasks = s.replays(true, 1, feedback.ID())
	c = s.claim(tasks[0])
	s.expect(c.ID == feedback.ID() && c.Attempt == 1 && c.Replay, "%+v", c)
}

// TestCancel checks that open deliveries are cancelled, and running ones with force only.
func (s *suite) TestCancel() {
	queued, waiting, held, running, done := s.takeOne(1), s.takeOne(2), s.takeOne(3), s.takeOne(4), s.end(5, delivered)
	s.waiting(waiting)
	s.heldBack(held)
	c := s.claim(running)
	ids := []uuid.UUID{queued.ID, waiting.ID, held.ID, running.ID, done, uuid.New()}
	left, ended := s.cancels(false, 3, ids...)
	s.expect(len(ended) == 3 && left[running.ID] != "" && left[done] != "" && left[ids[5]] != "", "%v, %v left", ended, left)
	for _, id := range ids[:3] {
		d := s.read(id)
		s.expect(d.Status == outcome.Cancelled && d.Reason == "operator" && d.FinishedAt != nil && d.NextAttemptAt == nil,
			"%+v", d)
	}
	s.refused(queued.ID, queued.N, "it is cancelled")
	s.is(running.ID, outcome.Running, "", 1, 1)
	s.cancels(true, 1, ids...)
	s.fenced(c, failed(time.Second))
	s.fenced(c, delivered) // the delivery ended, so the late success completes the attempt only
	d := s.is(running.ID, outcome.Cancelled, "operator", 1, 1)
	s.expect(slices.ContainsFunc(d.History, func(a ledger.Attempt) bool { return a.Outcome == "delivered" }), "%+v",
		d.History)
	// A cancelled delivery does not count towards the dispatch limit, and can be replayed.
	tasks := s.take(6, ledger.MaxDispatchedPerAgent+1)
	s.cancels(false, 1, tasks[0].ID)
	next := s.nextTask()
	s.expect(next.ID == Feedback(6, ledger.MaxDispatchedPerAgent+1).ID(), "%+v", next)
	_, tasks = s.replays(false, 1, queued.ID)
	s.expect(len(tasks) == 1, "%+v", tasks)
}
