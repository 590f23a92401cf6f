package storetest

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestAccept checks the verdicts for new, known, conflicting and refused jobs.
func (s *suite) TestAccept() {
	j := Feedback(1, 1)
	other := Feedback(1, 1)
	other.Tag1 = "something else"
	refused := ledger.Intake{Job: Feedback(1, 2), Refused: "no good", Received: json.RawMessage(`{"received": {"text": "{"}}`)}
	for i, tt := range []struct {
		in      ledger.Intake
		verdict ledger.Verdict
		status  outcome.Status
		field   string
		tasks   int
	}{
		{ledger.Intake{Job: j}, ledger.Accepted, outcome.Queued, "", 1},
		{ledger.Intake{Job: j}, ledger.Known, outcome.Queued, "", 0},
		{ledger.Intake{Job: other}, ledger.Conflict, outcome.Queued, "tag1", 0},
		{refused, ledger.Accepted, outcome.Rejected, "", 0},
		{refused, ledger.Known, outcome.Rejected, "", 0},
	} {
		a, tasks := s.send(tt.in)
		s.expect(a.Verdict == tt.verdict && a.Status == tt.status && a.Field == tt.field && a.ID == tt.in.Job.ID() &&
			len(tasks) == tt.tasks, "%d: %+v and %d tasks, want %+v", i, a, len(tasks), tt)
	}
	s.is(j.ID(), outcome.Queued, "", 0, 0)
	s.is(refused.Job.ID(), outcome.Rejected, "invalid_job", 0, 0)
	d := s.read(refused.Job.ID())
	s.expect(string(d.Result) == string(refused.Received) && d.Job == nil, "of the refused job %s is kept", d.Result)
	d = s.read(j.ID())
	s.expect(d.Dispatch == 1 && d.Key == j.Key(), "%+v", d)
	_, err := s.DeliveryByKey(s.Context(), `nobody's \ or \x`)
	s.expect(errors.Is(err, ledger.ErrNotFound), "a key that nobody holds: %v", err)
	_, err = s.Delivery(s.Context(), uuid.New())
	s.expect(errors.Is(err, ledger.ErrNotFound), "%v", err)
}

// TestKeepsTraces checks that all claims and the row have the trace of the job, or the delivery's own.
func (s *suite) TestKeepsTraces() {
	const caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for i, tt := range []struct{ brought, kept string }{
		{caller, caller}, {"", ""},
	} {
		j := Feedback(1+i, 1)
		_, tasks := s.send(ledger.Intake{Job: j, Traceparent: tt.brought})
		again, _ := s.send(ledger.Intake{Job: j, Traceparent: strings.Replace(caller, "4bf9", "aaaa", 1)})
		s.expect(again.Verdict == ledger.Known, "a traceparent makes a known job %s", again.Verdict)
		c := s.claim(tasks[0])
		r := s.record(c, failed(time.Minute))
		s.Advance(time.Minute)
		for _, c := range []*ledger.Claim{c, s.claim(*r.Task)} {
			s.expect(c.Traceparent == tt.kept, "attempt %d knows %q, want %q", c.Attempt, c.Traceparent, tt.kept)
		}
		d, want := s.read(j.ID()), tracecontext.Of(j.ID(), tt.kept).TraceID.String()
		s.expect(d.TraceID == want, "the row shows trace %q, want %q", d.TraceID, want)
	}
}

// TestClaimsAreRefused checks that only the newest task of a dispatched, due delivery can claim it.
func (s *suite) TestClaimsAreRefused() {
	task := s.takeOne(1)
	s.refused(uuid.New(), 1, "there is no such delivery")
	for _, n := range []int{math.MinInt, -1, 0, 2, math.MaxInt32, math.MaxInt} {
		s.refused(task.ID, n, "n is not the row's")
	}
	c := s.claim(task)
	s.expect(c.Attempt == 1 && c.Budget == 1 && !c.Called && !c.Unfinished && !c.Replay && c.Enabled &&
		c.Agent() == Agent(1) && c.LeaseUntil.Sub(c.StartedAt) == lease && c.Job.Tag1 == "uptime" &&
		c.FetchFailures == 0, "%+v", c)
	s.refused(task.ID, task.N, "it runs")
	r := s.record(c, failed(time.Minute))
	s.early(task.ID, task.N)
	s.Advance(time.Minute)
	s.refused(task.ID, task.N+1, "there is no such task yet")
	held := ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, Stage: "call"}
	s.record(s.claim(*r.Task), held)
	s.refused(task.ID, r.Task.N, "it is held")
	ended := s.takeOne(2)
	s.record(s.claim(ended), delivered)
	s.refused(ended.ID, ended.N, "it is delivered")
	tasks := s.take(3, ledger.MaxDispatchedPerAgent+1)
	s.require(len(tasks) == ledger.MaxDispatchedPerAgent, "%d handed out", len(tasks))
	last := Feedback(3, ledger.MaxDispatchedPerAgent+1).ID()
	for n := range 3 {
		s.refused(last, n, "it is not handed out")
	}
	got := s.read(task.ID)
	s.expect(got.Attempts == 1 && len(got.History) == 1, "refused claims count: %+v", got)
}

// TestWaitIsClaimedWhenDue checks that a waiting delivery can be claimed from one second before the end of its wait, and
// not earlier.
func (s *suite) TestWaitIsClaimedWhenDue() {
	task := s.takeOne(1)
	r := s.record(s.claim(task), failed(time.Minute))
	s.require(r.Task != nil && r.Task.N == task.N && r.Task.ID == task.ID && r.Task.Attempts == 1 &&
		r.Task.Kind == "NewFeedback" && r.Task.At.Equal(r.NextAttemptAt), "%+v", r)
	d := s.is(task.ID, outcome.Waiting, "server_error", 1, 1)
	s.expect(d.NextAttemptAt.Equal(r.NextAttemptAt) && d.NextAttemptAt.Sub(d.UpdatedAt) == time.Minute &&
		d.Dispatch == r.Task.N, "%+v", d)
	s.Advance(58 * time.Second)
	s.early(task.ID, task.N)
	s.Advance(time.Second + 500*time.Millisecond) // Redis may be half a second early
	c := s.claim(*r.Task)
	s.expect(c.Attempt == 2 && c.Budget == 2 && c.Called && !c.Unfinished, "%+v", c)
}

// TestExtend checks that a lease can be extended until it expires or the outcome is recorded.
func (s *suite) TestExtend() {
	c := s.claim(s.takeOne(1))
	s.Advance(lease - time.Second)
	s.must(s.Extend(s.Context(), c, lease))
	s.Advance(lease - time.Second)
	s.expireLeases(10, 0, 0)
	s.Advance(2 * time.Second)
	err := s.Extend(s.Context(), c, lease)
	s.expect(errors.Is(err, ledger.ErrFenced), "a lease that ran out was renewed: %v", err)
	s.record(c, failed(time.Second)) // no other worker has claimed it
	err = s.Extend(s.Context(), c, lease)
	s.expect(errors.Is(err, ledger.ErrFenced), "a recorded claim was renewed: %v", err)
}

// TestFence checks that a worker that lost its claim changes nothing, dispatches nothing and counts nothing.
func (s *suite) TestFence() {
	tasks := s.take(1, 10)
	old := s.claim(tasks[0])
	s.lose(old)
	before := s.is(old.ID, outcome.Queued, "", 1, 1)
	late := []ledger.Outcome{failed(time.Second), notYet(time.Second), {Status: outcome.Dead, Reason: "timeout", AgentError: "x"},
		{Status: outcome.Held, Reason: "auth_required", Free: true}, {Status: outcome.Skipped, Reason: "no_uri"},
		{Status: outcome.Rejected, Reason: "tool_error", Called: true}}
	for _, o := range late {
		s.fenced(old, o)
	}
	after := s.is(old.ID, outcome.Queued, "", 1, 1)
	s.expect(after.Dispatch == before.Dispatch && after.History[0].Outcome == "", "a lost claim changed the row: %+v",
		after)
	n := s.handed()
	s.expect(n == ledger.MaxDispatchedPerAgent-1, "%d handed out by a lost claim", n-ledger.MaxDispatchedPerAgent+1)
	again := s.nextTask()
	s.require(again.ID == old.ID && again.N == old.N+1, "%+v", again) // the oldest goes first
	c := s.claim(again)
	s.expect(c.No > old.No && c.Attempt == 2, "second claim %+v after %+v", c, old)
	for _, o := range late {
		s.fenced(old, o)
	}
	err := s.Extend(s.Context(), old, lease)
	s.expect(errors.Is(err, ledger.ErrFenced), "%v", err)
	s.is(old.ID, outcome.Running, "", 2, 2)
	s.lose(c)
	for _, o := range late { // the spooled outcome of the first attempt, under the claim of the second
		r, err := s.Adopt(s.Context(), c, past(old, o))
		s.expect(errors.Is(err, ledger.ErrFenced) && r.Task == nil && len(r.Next) <= 0, "%s: %+v, %v", o.Status, r, err)
	}
	s.is(old.ID, outcome.Queued, "", 2, 2)
	s.record(s.claim(s.nextTask()), delivered)
	s.outcomes(old.ID, "", "", "delivered")
}

// TestLateSuccessEnds checks the one exception to the fence: a success is recorded although its claim was lost.
func (s *suite) TestLateSuccessEnds() {
	for agent, meanwhile := range []func(){
		func() {},                           // the delivery is in the backlog
		func() { s.claim(s.nextTask()) },    // another worker runs it
		func() { s.waiting(s.nextTask()) },  // another worker failed
		func() { s.heldBack(s.nextTask()) }, // another worker held it
	} {
		old := s.claim(s.takeOne(agent + 1))
		s.lose(old)
		meanwhile()
		s.record(old, delivered)
		d := s.read(old.ID)
		s.expect(d.Status == outcome.Delivered && d.FinishedAt != nil && d.History[0].Outcome == "delivered",
			"case %d: %+v", agent, d)
		if n := len(d.History); n > 1 {
			s.refused(old.ID, d.Dispatch, "it is delivered")
		}
	}
	// The other worker's claim is lost: its failure changes nothing, its success completes its own attempt.
	old := s.claim(s.takeOne(10))
	s.lose(old)
	other := s.claim(s.nextTask())
	s.record(old, delivered)
	s.fenced(other, failed(time.Second))
	s.outcomes(old.ID, "delivered", "")
	s.fenced(other, delivered)
	s.outcomes(old.ID, "delivered", "delivered")
}

func (s *suite) waiting(t ledger.Task) { s.record(s.claim(t), failed(time.Hour)) }
func (s *suite) heldBack(t ledger.Task) {
	s.record(s.claim(t), ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true})
}

// TestRecordTwice checks that recording the same outcome again returns the same answer, and that invalid statuses are
// rejected.
func (s *suite) TestRecordTwice() {
	task := s.takeOne(1)
	c := s.claim(task)
	first := s.record(c, failed(time.Minute))
	second := s.record(c, failed(time.Minute)) // the first answer was lost
	heraldtest.Equal(s, "the task of the second answer", second.Task, first.Task)
	s.is(task.ID, outcome.Waiting, "server_error", 1, 1)
	s.fenced(c, ledger.Outcome{Status: outcome.Dead, Reason: "timeout"})
	s.Advance(time.Minute)
	c = s.claim(*first.Task)
	s.fenced(&ledger.Claim{ID: c.ID, No: c.No - 1, Job: c.Job, Attempt: 1}, failed(time.Minute))
	s.record(c, delivered)
	s.record(c, delivered)
	s.outcomes(task.ID, "waiting", "delivered")
	for _, status := range []outcome.Status{outcome.Running, outcome.Queued, ""} {
		_, err := s.Record(s.Context(), c, ledger.Outcome{Status: status})
		s.expect(err != nil && strings.Contains(err.Error(), "attempt can end with"), "an attempt led to %q: %v", status, err)
	}
}

// TestFreeOutcomes checks that a free outcome does not count as an attempt, unless the agent was called.
func (s *suite) TestFreeOutcomes() {
	for i, tt := range []struct {
		o        ledger.Outcome
		attempts int
	}{
		{notYet(time.Minute), 0},
		{ledger.Outcome{Status: outcome.Held, Reason: "chain_unconfigured", Free: true, Stage: "check"}, 0},
		{ledger.Outcome{Status: outcome.Waiting, Reason: "throttled", Free: true, Called: true, Stage: "call"}, 1},
		{ledger.Outcome{Status: outcome.Held, Reason: "held_unknown", Free: true, Called: true, Stage: "call"}, 1},
		{ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Stage: "call"}, 1},
		{ledger.Outcome{Status: outcome.Skipped, Reason: "no_uri", Stage: "resolve"}, 1},
		{ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error", Stage: "call", Called: true}, 1},
	} {
		task := s.takeOne(i + 1)
		s.record(s.claim(task), tt.o)
		s.is(task.ID, tt.o.Status, tt.o.Reason, tt.attempts, tt.attempts)
	}
	// Free attempts do not count: after any number of them, the next attempt is the first.
	task := s.takeOne(20)
	for range 4 {
		c := s.claim(task)
		s.require(c.Attempt == 1 && c.Budget == 1 && !c.Called && !c.Unfinished, "%+v", c)
		task = *s.record(c, notYet(time.Minute)).Task
		s.Advance(time.Minute)
	}
}

// TestUnfinishedAndCalled checks Claim.Unfinished and Claim.Called after attempts without an outcome and after calls.
func (s *suite) TestUnfinishedAndCalled() {
	task := s.takeOne(1)
	old := s.claim(task)
	s.lose(old)
	c := s.claim(s.nextTask())
	s.expect(c.Unfinished && c.Called && c.Attempt == 2 && c.Budget == 2, "after a worker that died: %+v", c)
	// The outcome of the second attempt is recorded. That of the first stays unknown.
	r := s.record(c, notYet(time.Minute))
	s.is(task.ID, outcome.Waiting, "not_confirmed", 1, 1)
	s.Advance(time.Minute)
	c = s.claim(*r.Task)
	s.expect(c.Unfinished && c.Called && c.Attempt == 2, "%+v", c)
	s.record(c, delivered)
	s.outcomes(task.ID, "", "delivered")

	task = s.takeOne(2)
	r = s.record(s.claim(task), ledger.Outcome{Status: outcome.Waiting, Reason: "connect_failed", Delay: time.Minute, Task: true, Stage: "call"})
	s.Advance(time.Minute)
	c = s.claim(*r.Task)
	s.expect(!c.Unfinished && !c.Called, "after a call that was never written: %+v", c)
	r = s.record(c, failed(time.Minute))
	s.Advance(time.Minute)
	c = s.claim(*r.Task)
	s.expect(!c.Unfinished && c.Called, "after a call: %+v", c)
}

// TestFailedFetches checks that Claim.FetchFailures counts failed fetches of the present budget.
func (s *suite) TestFailedFetches() {
	o := ledger.Outcome{Status: outcome.Waiting, Reason: "content_unavailable", Delay: time.Minute, Task: true, Stage: "fetch", FetchFailed: true}
	task := s.takeOne(1)
	for want := range attempts {
		c := s.claim(task)
		s.expect(c.FetchFailures == want, "%d failed fetches, want %d", c.FetchFailures, want)
		task = *s.record(c, o).Task
		s.Advance(time.Minute)
	}
	task = *s.record(s.claim(task), failed(time.Minute)).Task
	s.Advance(time.Minute)
	c := s.claim(task)
	s.expect(c.FetchFailures == attempts, "%d failed fetches after another failure", c.FetchFailures)
	s.record(c, ledger.Outcome{Status: outcome.Dead, Reason: "server_error"})
	_, tasks := s.replays(false, 1, task.ID)
	c = s.claim(tasks[0])
	s.expect(c.FetchFailures == 0, "%d failed fetches after a replay", c.FetchFailures)
}

// TestEpochIsRaisedOnce checks that failures with Outcome.Moved raise the epoch once, and once more after the agent has
// accepted a call.
func (s *suite) TestEpochIsRaisedOnce() {
	moved := failed(time.Minute)
	moved.Moved = true
	tasks := s.take(1, 7)
	first, second := s.claim(tasks[0]), s.claim(tasks[1])
	s.record(first, moved)
	c := s.claim(tasks[2])
	s.require(c.Epoch == first.Epoch+1, "epoch %d after %d", c.Epoch, first.Epoch)
	s.record(second, moved) // resolved before the epoch was raised
	s.record(c, moved)      // resolved again, and still failing
	c = s.claim(tasks[3])
	s.expect(c.Epoch == first.Epoch+1, "epoch %d was raised again", c.Epoch)
	s.record(c, delivered)
	s.record(s.claim(tasks[4]), failed(time.Minute)) // without Outcome.Moved
	c = s.claim(tasks[5])
	s.expect(c.Epoch == first.Epoch+1, "epoch %d", c.Epoch)
	s.record(c, moved)
	c = s.claim(tasks[6])
	s.expect(c.Epoch == first.Epoch+2, "epoch %d after it worked and failed", c.Epoch)
}
