package storetest

import (
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// hours returns the counts of an agent's calls in the last hours.
func (s *suite) hours(agent, last int) records.CallSummary {
	s.Helper()
	now, _, err := s.Store.Clock(s.Context())
	s.must(err)
	since := now.Add(-time.Duration(last) * time.Hour)
	hours, err := s.Store.(Postgres).AgentStats(s.Context(), Agent(agent), since)
	s.must(err)
	for _, h := range hours {
		s.expect(h.Hour.Equal(h.Hour.Truncate(time.Hour)) && !h.Hour.After(now),
			"it is %s, and there is an hour that begins at %s", now, h.Hour)
	}
	sum := records.SummarizeHours(hours, since)
	sum.Since = time.Time{}
	return sum
}

// RecordsCallsAreCounted checks the counts by hour, and which outcomes count as calls: those that sent a call, and those that
// failed by the agent's fault.
func (s *suite) RecordsCallsAreCounted() {
	took := func(o ledger.Outcome, d time.Duration) ledger.Outcome {
		o.CallTook = d
		return o
	}
	blamed := func(why outcome.Reason, called bool) ledger.Outcome {
		return ledger.Outcome{Status: outcome.Waiting, Reason: why, Delay: time.Hour, Stage: "call", AgentError: "it failed", Called: called}
	}
	got := s.hours(1, 100)
	s.expect(got.Calls == 0 && got.P50Ms == nil, "of nobody: %+v", got)
	for i, o := range []ledger.Outcome{
		took(delivered, 40*time.Millisecond),
		took(delivered, 50*time.Millisecond),
		delivered,                                        // without a duration, as from an older version
		took(failed(time.Hour), time.Minute),             // a call that failed without the agent's fault
		took(blamed("timeout", true), 61*time.Second),    // in the last bucket
		took(blamed("connect_failed", false), time.Hour), // no call was written
		blamed("connect_failed", false),
		{Status: outcome.Held, Reason: "auth_required", Free: true, Stage: "call", AgentError: "it said 401"},
		notYet(time.Hour),
		{Status: outcome.Waiting, Reason: "throttled", Free: true, Delay: time.Hour, Stage: "compose"},
		{Status: outcome.Skipped, Reason: "no_uri", Stage: "resolve"},
	} {
		s.record(s.claimNew(i+1), o)
	}
	ms := func(x float64) *float64 { return &x }
	first := records.CallSummary{Calls: 8, Failed: 4, Failures: map[outcome.Reason]int{"timeout": 1, "connect_failed": 2, "auth_required": 1},
		P50Ms: ms(50), P95Ms: ms(60000)}
	heraldtest.Equal(s, "calls of the agent", s.hours(1, 1), first)
	r := s.agentRow(1)
	s.expect(r.LastCalledAt != nil && !r.LastCalledAt.Before(*r.LastOKAt), "last called %v, last success %v",
		r.LastCalledAt, r.LastOKAt)

	s.Advance(3 * time.Hour)
	s.record(s.claimNew(51), took(blamed("timeout", true), 7*time.Millisecond))
	s.record(s.claim(s.takeOne(2)), took(delivered, 15*time.Second))
	heraldtest.Equal(s, "of now", s.hours(1, 1), records.CallSummary{Calls: 1, Failed: 1, Failures: map[outcome.Reason]int{"timeout": 1},
		P50Ms: ms(5), P95Ms: ms(9.5)})
	heraldtest.Equal(s, "of now and before", s.hours(1, 4), records.CallSummary{Calls: 9, Failed: 5,
		Failures: map[outcome.Reason]int{"timeout": 2, "connect_failed": 2, "auth_required": 1}, P50Ms: ms(42.5), P95Ms: ms(60000)})
	heraldtest.Equal(s, "of another agent", s.hours(2, 1), records.CallSummary{Calls: 1, P50Ms: ms(15000), P95Ms: ms(19500)})
}

// RecordsCountedOnce checks that a lost claim counts nothing, and that a late success that ends the delivery and an adopted
// outcome count once.
func (s *suite) RecordsCountedOnce() {
	tasks := s.take(1, 4)
	calls := func(want int, why string) {
		s.Helper()
		got := s.hours(1, 1)
		s.expect(got.Calls == want && got.Failed == 0, "%s: %+v, want %d calls", why, got, want)
	}
	c := s.claim(tasks[0])
	s.record(c, delivered)
	s.record(c, delivered)
	calls(1, "recorded twice, as if the answer had been lost")

	c = s.claim(tasks[1])
	s.lose(c)
	s.fenced(c, failed(time.Minute))
	calls(1, "a lost claim")
	s.record(c, delivered)
	calls(2, "a late success that ends the delivery")
	s.fenced(c, delivered)
	calls(2, "the same again")

	c = s.claim(tasks[2])
	s.lose(c)
	again := s.claim(s.nextTask())
	s.adopted(again, past(c, delivered))
	calls(3, "adopted")
	s.fenced(again, failed(time.Minute))
	calls(3, "the attempt that was taken back")
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
