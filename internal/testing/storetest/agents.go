package storetest

import (
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// disabled is the outcome of a delivery that is held because its agent is disabled: by its row or, with elsewhere, by
// the servers file (ledger.Outcome.Elsewhere).
func disabled(elsewhere bool) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Free: true, Stage: "check", Elsewhere: elsewhere}
}

// TestReleaseOfEnabled checks that ReleaseEnabled releases deliveries that the servers file held, and no others.
func (s *suite) TestReleaseOfEnabled() {
	byFile, byRow, auth := s.takeOne(1), s.takeOne(2), s.takeOne(3)
	s.record(s.claim(byFile), disabled(true))
	s.is(byFile.ID, outcome.Held, "agent_disabled", 0, 0) // although the row is enabled
	_, _, err := s.EnableAgent(s.Context(), Agent(2), false)
	s.must(err)
	s.record(s.claim(byRow), disabled(false))
	s.heldBack(auth)
	more := s.take(4, 2)
	for _, t := range more {
		s.record(s.claim(t), disabled(true))
	}
	r := s.agentRow(1)
	s.expect(r.State == records.StateDisabled && r.Enabled, "%+v", r)

	release := func(want int, except ...int) []ledger.Task {
		s.Helper()
		n, tasks, err := s.ReleaseEnabled(s.Context(), func(a erc8004.Agent) bool {
			return slices.ContainsFunc(except, func(agent int) bool { return a == Agent(agent) })
		})
		s.must(err)
		tasks = s.toRun(tasks, n)
		s.require(n == want && len(tasks) == want, "%d released, handed out %+v; want %d", n, tasks, want)
		return tasks
	}
	release(0, 1, 4)
	tasks := release(2, 1)
	for i, t := range tasks {
		s.expect(t.ID == more[i].ID && t.N == more[i].N+1, "%+v after %+v", t, more[i])
	}
	r = s.agentRow(4)
	s.expect(r.State == records.StatePending, "%+v", r)
	n, tasks, err := s.ReleaseEnabled(s.Context(), nil)
	tasks = s.toRun(tasks, n)
	s.expect(n == 1 && len(tasks) == 1 && tasks[0].ID == byFile.ID && err == nil, "%d released, %+v, %v", n, tasks, err)
	c := s.claim(tasks[0])
	s.expect(c.Attempt == 1 && !c.Replay, "%+v", c)
	s.record(c, delivered)
	s.is(byRow.ID, outcome.Held, "agent_disabled", 0, 0)
	s.is(auth.ID, outcome.Held, "auth_required", 0, 0)
}

func (s *suite) agentRow(agent int) records.AgentRow {
	s.Helper()
	r, err := s.AgentRow(s.Context(), Agent(agent))
	s.must(err)
	return r
}

// TestAgentStates checks the agent's state after each kind of outcome.
func (s *suite) TestAgentStates() {
	task := s.takeOne(1)
	r := s.agentRow(1)
	s.expect(r.State == records.StatePending, "before anything is tried: %+v", r)
	again := func(o ledger.Outcome) ledger.Outcome {
		o.Status, o.Delay, o.Task, o.Stage = outcome.Waiting, time.Minute, true, "call"
		return o
	}
	for i, tt := range []struct {
		o    ledger.Outcome
		want string
	}{
		{again(ledger.Outcome{Reason: "chain_unavailable"}), records.StatePending}, // the agent was not called
		{again(ledger.Outcome{Reason: "server_error", AgentError: "it said 503"}), records.StateFailed},
		{again(ledger.Outcome{Reason: "throttled", Free: true}), records.StateFailed},
		{again(ledger.Outcome{Reason: "auth_required", AgentError: "it said 401"}), records.StateNeedsAuth},
		{again(ledger.Outcome{Reason: "auth_failed"}), records.StateNeedsAuth}, // failed with a job's own headers
		{again(ledger.Outcome{Reason: "agent_disabled", Free: true}), records.StateDisabled},
		{again(ledger.Outcome{Reason: "throttled", Free: true}), records.StatePending}, // enabled again
		{delivered, records.StateConnected},
	} {
		r := s.record(s.claim(task), tt.o)
		got := s.agentRow(1)
		s.expect(got.State == tt.want, "%d: after %s %s it is %s, want %s", i, tt.o.Status, tt.o.Reason, got.State,
			tt.want)
		if r.Task != nil {
			task = *r.Task
			s.Advance(time.Minute)
		}
	}
	r = s.agentRow(1)
	s.expect(r.LastOKAt != nil && r.LastError == "it said 401" && r.LastErrorAt != nil, "%+v", r)
	_, _, err := s.EnableAgent(s.Context(), Agent(1), false)
	s.must(err)
	s.record(s.claimNew(2), delivered) // a success does not enable the agent
	r = s.agentRow(1)
	s.expect(r.State == records.StateDisabled && !r.Enabled, "%+v", r)
}

// TestFailingSince checks that FailingSince is set from the first failed call after a success to the next success, or until
// the agent is enabled.
func (s *suite) TestFailingSince() {
	fail := failed(time.Hour)
	fail.AgentError = "it said 503"
	n := 0
	does := func(o ledger.Outcome) *time.Time {
		s.Helper()
		s.record(s.claimNew(n+1), o)
		n++
		s.Advance(time.Minute)
		return s.agentRow(1).FailingSince
	}
	expect := func(got *time.Time, minutes int, why string) {
		s.Helper()
		now, _, err := s.Store.Clock(s.Context())
		s.must(err)
		if got == nil && minutes == 0 {
			return
		}
		s.expect(got != nil && minutes != 0 && now.Sub(*got).Round(time.Minute) == time.Duration(minutes)*time.Minute,
			"%s: at %s it fails since %v, want since %d minutes", why, now, got, minutes)
	}
	expect(does(notYet(time.Hour)), 0, "nobody has asked it")
	expect(does(failed(time.Hour)), 0, "not by its fault")
	expect(does(fail), 1, "of a new agent")
	expect(does(fail), 2, "the second")
	expect(does(notYet(time.Hour)), 3, "what is no call")
	expect(does(delivered), 0, "it took a call")
	expect(does(fail), 1, "failing again")
	for _, enabled := range []bool{false, true} {
		_, _, err := s.EnableAgent(s.Context(), Agent(1), enabled)
		s.must(err)
		expect(s.agentRow(1).FailingSince, map[bool]int{false: 1, true: 0}[enabled], "enabled or not")
	}
	expect(does(fail), 1, "though it was enabled")
	expect(does(disabled(true)), 2, "the servers file disables it")
	_, _, err := s.ReleaseEnabled(s.Context(), nil)
	s.must(err)
	expect(s.agentRow(1).FailingSince, 0, "and does not any more")
}
