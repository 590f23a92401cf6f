package records_test

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// fillHours inserts calls of agents 1 to n in each of the given number of hours, of which the last is the current one.
func fillHours(t *testing.T, s storetest.Postgres, agents, hours int) {
	t.Helper()
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, hour, hour_calls, hour_failed, hour_failures)
		SELECT 8453, $1, n, date_trunc('hour', now(), 'UTC'), 20, n % 10, jsonb_build_object('timeout', n % 10) FROM generate_series(1, $2::int) n`,
		storetest.Agent(1).Registry, agents)
	exec(t, s, `INSERT INTO herald.agent_hours (hour, chain_id, identity_registry, agent_id, calls, failed, failures, latency)
		SELECT date_trunc('hour', now(), 'UTC') - h * interval '1 hour', 8453, $1, n, 20, n % 10, jsonb_build_object('timeout', n % 10), array_fill(1, ARRAY[14])
		  FROM generate_series($3::int - 1, 1, -1) h, generate_series(1, $2::int) n`, storetest.Agent(1).Registry, agents, hours)
}

// TestAgentHoursPlans: on a year's worth of rows, an agent's counts, the failing agents and the rows to drop are found
// by the primary key.
func TestAgentHoursPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fillHours(t, s, 1000, 25)
	exec(t, s, `INSERT INTO herald.agent_hours SELECT hour - interval '30 days', chain_id, identity_registry, agent_id, calls, failed, failures, latency
		FROM herald.agent_hours WHERE agent_id <= 500`)
	exec(t, s, `VACUUM ANALYZE herald.agents, herald.agent_hours`)
	agent := `8453, '` + storetest.Agent(1).Registry + `', 7`
	for name, st := range map[string]struct{ sql, args string }{
		"agent_hours":     {records.Statements.Text("agent_hours"), agent + `, now() - interval '1 day', '90 days'`},
		"all_agent_hours": {records.Statements.Text("agent_hours"), agent + `, '0001-01-01', '90 days'`},
		"failing":         {records.FailingFirst, `50`},
	} {
		plan := explain(t, s, st.sql, st.args)
		if strings.Contains(plan, "Seq Scan") || !regexp.MustCompile(`Index (Only )?(Scan|Cond).*agent_hours_pkey|on agent_hours_pkey`).MatchString(plan) {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}

// TestFailingAgents: agents are listed by failed calls of the last day, then by share of failed calls, page by page.
func TestFailingAgents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, state) SELECT 8453, '0xaa', n, CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'pending' END
		FROM generate_series(1, 8) n`)
	counts := func(agent, hoursAgo, calls, failed int) {
		t.Helper()
		exec(t, s, `INSERT INTO herald.agent_hours VALUES (date_trunc('hour', now(), 'UTC') - $2::int * interval '1 hour', 8453, '0xaa', $1, $3, $4, '{}',
			array_fill(0, ARRAY[14]))`, agent, hoursAgo, calls, failed)
	}
	exec(t, s, `UPDATE herald.agents SET hour = date_trunc('hour', now(), 'UTC'), hour_calls = 2, hour_failed = 2 WHERE agent_id IN (1, 2)`)
	exec(t, s, `UPDATE herald.agents SET hour = now() - interval '26 hours', hour_calls = 9, hour_failed = 9 WHERE agent_id = 7`)
	counts(1, 1, 1, 1)
	counts(2, 3, 8, 0)
	counts(2, 5, 10, 2)
	counts(3, 24, 4, 4)
	counts(4, 26, 100, 100) // yesterday
	counts(5, 1, 100, 0)
	counts(6, 2, 4, 4)
	counts(6, 30, 99, 99)
	counts(5, -48, 50, 50) // of a clock that was ahead
	exec(t, s, `UPDATE herald.agents SET hour = now() + interval '26 hours', hour_calls = 9, hour_failed = 9 WHERE agent_id = 8`)
	chain, other := uint64(8453), uint64(1)
	for _, tt := range []struct {
		f    records.AgentFilter
		want string
	}{
		{records.AgentFilter{}, "3:4/4 6:4/4 2:4/20 1:3/3 4:0/0 5:0/100 7:0/0 8:0/0"},
		{records.AgentFilter{ChainID: &chain, State: "failed"}, "6:4/4 2:4/20 4:0/0 8:0/0"},
		{records.AgentFilter{AgentID: "2"}, "2:4/20"},
		{records.AgentFilter{ChainID: &other}, ""},
	} {
		for limit := range 4 {
			f, got := tt.f, []string{}
			for f.Sort, f.Limit = records.SortFailing, limit; ; {
				page, err := s.Agents(t.Context(), f)
				heraldtest.Must(t, err)
				for _, r := range page {
					got = append(got, fmt.Sprintf("%s:%d/%d", r.AgentID, r.FailedOfDay, r.CallsOfDay))
					f.After, f.AfterCalls, f.AfterFailed = &erc8004.Agent{ChainID: r.ChainID, Registry: r.IdentityRegistry, ID: r.AgentID}, r.CallsOfDay, r.FailedOfDay
				}
				if len(page) < cmp.Or(limit, 50) {
					break
				}
			}
			heraldtest.Equal(t, fmt.Sprintf("agents of %+v", f), strings.Join(got, " "), tt.want)
		}
	}
}

// TestDropAgentHours: the oldest rows are dropped first, at most the limit per call, and rows within the retention
// stay.
func TestDropAgentHours(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fillHours(t, s, 3, 6)
	exec(t, s, `UPDATE herald.agent_hours SET hour = hour - interval '100 days' WHERE hour < now() - interval '3 hours'`) // nine of 15
	for i, want := range []int{4, 4, 1, 0} {
		oldest := value[time.Time](t, s, `SELECT min(hour) FROM herald.agent_hours`)
		n, err := retention.New(s.Pool).DropAgentHours(t.Context(), retention.AgentHoursKept, 4)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, fmt.Sprintf("dropped in round %d", i), n, want)
		if left := value[int](t, s, `SELECT count(*)::int FROM herald.agent_hours WHERE hour = $1`, oldest); i == 0 && left != 0 {
			t.Errorf("%d of the oldest hour are left", left)
		}
	}
	heraldtest.Equal(t, "rows are left",
		value[int](t, s, `SELECT count(*)::int FROM herald.agent_hours WHERE hour > now() - interval '4 hours'`), 6)
}

// TestAgentStats: AgentStats returns the hours of one agent from the given time on.
func TestAgentStats(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fillHours(t, s, 2, 30)
	exec(t, s, `INSERT INTO herald.agent_hours SELECT hour - interval '91 days', chain_id, identity_registry, agent_id, calls, failed, failures, latency
		FROM herald.agent_hours`) // retention is late
	now := value[time.Time](t, s, `SELECT max(hour) FROM herald.agents`)
	for since, want := range map[time.Time]int{{}: 30, now.Add(time.Hour): 0, now: 1, now.Add(-24 * time.Hour): 25, now.Add(-90 * time.Minute): 3} {
		hours, err := s.AgentStats(t.Context(), storetest.Agent(2), since)
		if err != nil || len(hours) != want {
			t.Errorf("since %s: %d hours, %v, want %d", since, len(hours), err, want)
		}
		for i, h := range hours {
			if h.Calls != 20 || h.Failed != 2 || !maps.Equal(h.Failures, map[outcome.Reason]int{"timeout": 2}) || len(h.Latency) != len(ledger.LatencyBounds)+1 ||
				!h.Hour.Equal(now.Add(-time.Duration(want-1-i)*time.Hour)) {
				t.Errorf("since %s: %+v", since, h)
			}
		}
	}
	heraldtest.Equal(t, "of an unknown agent", fmt.Sprint(s.AgentStats(t.Context(), storetest.Agent(3), time.Time{})), "[] <nil>")
}

// callsSince sums up the calls of agent 1 since the given number of hours.
func callsSince(t *testing.T, s storetest.Postgres, hours int) records.CallSummary {
	t.Helper()
	now := value[time.Time](t, s, `SELECT now()`)
	since := now.Add(-time.Duration(hours) * time.Hour)
	got, err := s.AgentStats(t.Context(), storetest.Agent(1), since)
	heraldtest.Must(t, err)
	for _, h := range got {
		if !h.Hour.Equal(h.Hour.Truncate(time.Hour)) || h.Hour.After(now) {
			t.Errorf("it is %s, and there is an hour that begins at %s", now, h.Hour)
		}
	}
	sum := records.SummarizeHours(got, since)
	sum.Since = time.Time{}
	return sum
}

// TestCallsAreCounted: an outcome counts as a call if it sent a call, or if it failed by the agent's fault. Sums include
// the current hour and the ended ones.
func TestCallsAreCounted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	took := func(o ledger.Outcome, d time.Duration) ledger.Outcome {
		o.CallTook = d
		return o
	}
	blamed := func(why outcome.Reason, called bool) ledger.Outcome {
		return ledger.Outcome{Status: outcome.Waiting, Reason: why, Delay: time.Hour, Stage: "call", AgentError: "it failed", Called: called}
	}
	heraldtest.Equal(t, "of nobody", callsSince(t, s, 100), records.CallSummary{})
	for i, o := range []ledger.Outcome{
		took(delivered, 40*time.Millisecond),
		took(delivered, 50*time.Millisecond),
		delivered,                                        // without a duration, as from an older version
		took(waiting(time.Hour), time.Minute),            // a call that failed without the agent's fault
		took(blamed("timeout", true), 61*time.Second),    // in the last bucket
		took(blamed("connect_failed", false), time.Hour), // no call was written
		blamed("connect_failed", false),
		{Status: outcome.Held, Reason: "auth_required", Free: true, Stage: "call", AgentError: "it said 401"},
		{Status: outcome.Waiting, Reason: "not_confirmed", Free: true, Delay: time.Hour, Stage: "check", Task: true},
		{Status: outcome.Waiting, Reason: "throttled", Free: true, Delay: time.Hour, Stage: "compose"},
		{Status: outcome.Skipped, Reason: "no_uri", Stage: "resolve"},
	} {
		recordNew(t, s, i+1, o)
	}
	ms := func(x float64) *float64 { return &x }
	heraldtest.Equal(t, "of the hour", callsSince(t, s, 1), records.CallSummary{Calls: 8, Failed: 4,
		Failures: map[outcome.Reason]int{"timeout": 1, "connect_failed": 2, "auth_required": 1}, P50Ms: ms(50), P95Ms: ms(60000)})
	if r := agentRow(t, s, 1); r.LastCalledAt == nil || r.LastCalledAt.Before(*r.LastOKAt) {
		t.Errorf("last called %v, last success %v", r.LastCalledAt, r.LastOKAt)
	}
	exec(t, s, `UPDATE herald.agents SET hour = hour - interval '3 hours'`)
	recordNew(t, s, 51, took(blamed("timeout", true), 7*time.Millisecond))
	heraldtest.Equal(t, "of now", callsSince(t, s, 1),
		records.CallSummary{Calls: 1, Failed: 1, Failures: map[outcome.Reason]int{"timeout": 1}, P50Ms: ms(5), P95Ms: ms(9.5)})
	heraldtest.Equal(t, "of now and before", callsSince(t, s, 4), records.CallSummary{Calls: 9, Failed: 5,
		Failures: map[outcome.Reason]int{"timeout": 2, "connect_failed": 2, "auth_required": 1}, P50Ms: ms(42.5), P95Ms: ms(60000)})
}

// TestHourOfAFastClock: while the clock of Postgres was ahead, calls were counted in an hour to come. Calls after the
// correction of the clock are counted in their own hour, and lists do not contain the hour to come.
func TestHourOfAFastClock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	recordNew(t, s, 1, delivered)
	exec(t, s, `UPDATE herald.agents SET hour = hour + interval '30 days', hour_calls = 100`) // which also copies the hour before
	for i := range 3 {
		heraldtest.Equal(t, "calls of now", callsSince(t, s, 1).Calls, i+1)
		recordNew(t, s, i+2, delivered)
	}
}

// TestFailuresOfAFastClock: an agent began to fail while the clock of Postgres was ahead. After the correction of the
// clock, it fails since its next failure, so that alerts and disabling do not wait for that time.
func TestFailuresOfAFastClock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	failed := ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, Stage: "call", AgentError: "it failed", Called: true}
	recordNew(t, s, 1, failed)
	before := agentRow(t, s, 1).FailingSince
	recordNew(t, s, 2, failed)
	heraldtest.Equal(t, "the first failure", agentRow(t, s, 1).FailingSince.Equal(*before), true)
	exec(t, s, `UPDATE herald.agents SET failing_since = now() + interval '30 days'`)
	recordNew(t, s, 3, failed)
	if since := agentRow(t, s, 1).FailingSince; since.After(value[time.Time](t, s, `SELECT now()`)) {
		t.Errorf("it fails since %s", since)
	}
}

// TestCallsAreCountedOnce: a lost claim counts nothing. A late success that ends the delivery and an adopted outcome
// count once.
func TestCallsAreCountedOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...)
	claimLost := func(task ledger.Task) *ledger.Claim {
		t.Helper()
		c := claim(t, s, task)
		exec(t, s, `UPDATE herald.work SET lease_until = now() WHERE id = $1`, c.ID)
		n, _, err := s.ExpireLeases(t.Context(), 10, 11)
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		return c
	}
	refuse := func(c *ledger.Claim, o ledger.Outcome) {
		t.Helper()
		_, err := s.Record(t.Context(), c, o)
		heraldtest.Fails(t, "the record of a lost claim", err, ledger.ErrFenced)
	}
	expect := func(why string, calls int) {
		t.Helper()
		heraldtest.Equal(t, why, callsSince(t, s, 1), records.CallSummary{Calls: calls})
	}
	c := claim(t, s, tasks[0])
	record(t, s, c, delivered)
	record(t, s, c, delivered)
	expect("recorded twice, as if the answer had been lost", 1)

	c = claimLost(tasks[1])
	refuse(c, waiting(time.Minute))
	expect("a lost claim", 1)
	record(t, s, c, delivered)
	expect("a late success that ends the delivery", 2)
	refuse(c, delivered)
	expect("the same again", 2)

	c = claimLost(tasks[2])
	next, err := s.Backlog(t.Context(), 10)
	heraldtest.Must(t, err)
	again := claim(t, s, next[0])
	_, err = s.Adopt(t.Context(), again, ledger.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: c.StartedAt.Add(time.Second), Outcome: delivered})
	heraldtest.Must(t, err)
	expect("adopted", 3)
	refuse(again, waiting(time.Minute))
	expect("the attempt that was taken back", 3)
}
