package store

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// TestLatencyBuckets: a recorded latency is counted in the bucket from which quantiles are computed.
func TestLatencyBuckets(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(latencyBounds[:]) {
		t.Fatal(latencyBounds)
	}
	for took, want := range map[time.Duration]int{0: -1, -time.Second: -1, 1: 0, 10 * time.Millisecond: 0, 10*time.Millisecond + 1: 1,
		time.Second: 6, time.Minute: 12, time.Minute + 1: 13, math.MaxInt64: 13} {
		o := Outcome{Called: true, CallTook: took}
		if got := o.latencyBucket(); got != want {
			t.Errorf("%s is in bucket %d, want %d", took, got, want)
		}
		if at := o.latencyPosition(); (at != nil) != (want >= 0) || at != nil && *at != int32(want)+1 {
			t.Errorf("%s: %v", took, at)
		}
	}
	heraldtest.Equal(t, "the bucket of an outcome without a call", (Outcome{CallTook: time.Second}).latencyBucket(), -1)
}

// TestQuantiles: an interpolated quantile lies in the bucket of the exact one.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	for range 500 {
		var h AgentHour
		took := make([]time.Duration, 1+rand.IntN(50))
		for i := range took {
			took[i] = time.Duration(1 + rand.Int64N(int64(1)<<rand.IntN(38)))
			h.Count(Outcome{Status: Delivered, Called: true, CallTook: took[i]})
		}
		slices.Sort(took)
		for _, q := range []float64{0.5, 0.95, 1} {
			exact := took[int(math.Ceil(q*float64(len(took))))-1]
			bucket, _ := slices.BinarySearch(latencyBounds[:], exact)
			from, to := 0.0, 60000.0
			if bucket > 0 {
				from = float64(latencyBounds[bucket-1].Milliseconds())
			}
			if bucket < len(latencyBounds) {
				to = float64(latencyBounds[bucket].Milliseconds())
			}
			if got := interpolateQuantile(h.Latency, q); got == nil || *got < from || *got > to {
				t.Fatalf("the quantile %g of %v is %s, and %v was read from %v", q, took, exact, *got, h.Latency)
			}
		}
	}
	if got := interpolateQuantile(nil, 0.5); got != nil {
		t.Error(*got)
	}
	// Hours before the period do not count, and a row with fewer buckets causes no failure.
	now := time.Date(2026, 11, 23, 12, 34, 0, 0, time.UTC)
	got := SummarizeHours([]AgentHour{{Hour: now.Add(-2 * time.Hour).Truncate(time.Hour), Calls: 7, Failed: 1, Failures: map[outcome.Reason]int{"timeout": 1}},
		{Hour: now.Truncate(time.Hour), Calls: 1, Latency: []int{1}}}, now.Add(-time.Hour))
	p50, p95 := 5.0, 9.5
	heraldtest.Equal(t, "sum", got, CallSummary{Since: now.Add(-time.Hour).Truncate(time.Hour), Calls: 1, P50Ms: &p50, P95Ms: &p95})
}

// fillHours inserts calls of agents 1 to n in each of the given number of hours, of which the last is the current one.
func fillHours(t *testing.T, s *Store, agents, hours int) {
	t.Helper()
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, hour, hour_calls, hour_failed, hour_failures)
		SELECT 8453, $1, n, date_trunc('hour', now(), 'UTC'), 20, n % 10, jsonb_build_object('timeout', n % 10) FROM generate_series(1, $2::int) n`,
		agentNamed("1").Registry, agents)
	exec(t, s, `INSERT INTO herald.agent_hours (hour, chain_id, identity_registry, agent_id, calls, failed, failures, latency)
		SELECT date_trunc('hour', now(), 'UTC') - h * interval '1 hour', 8453, $1, n, 20, n % 10, jsonb_build_object('timeout', n % 10), array_fill(1, ARRAY[14])
		  FROM generate_series($3::int - 1, 1, -1) h, generate_series(1, $2::int) n`, agentNamed("1").Registry, agents, hours)
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
	agent := `8453, '` + agentNamed("1").Registry + `', 7`
	for name, st := range map[string]struct{ sql, args string }{
		"agent_hours":      {statement("agent_hours"), agent + `, now() - interval '1 day', '90 days'`},
		"all_agent_hours":  {statement("agent_hours"), agent + `, '0001-01-01', '90 days'`},
		"drop_agent_hours": {statement("drop_agent_hours"), `'10 days', 500`},
		"failing":          {sortedPage(placedAgents, `p.calls, p.failed, 0`, SortFailing, ` LIMIT $1`), `50`},
	} {
		plan := explain(t, s, st.sql, st.args)
		if strings.Contains(plan, "Seq Scan") || !regexp.MustCompile(`Index (Only )?(Scan|Cond).*agent_hours_pkey|on agent_hours_pkey`).MatchString(plan) {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}

// TestEndedHourMovesToAgentHours: when an hour ends, the counts in the agent's row move to agent_hours, once. The hour
// never decreases.
func TestEndedHourMovesToAgentHours(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, grouped := range []bool{false, true} {
		agent := map[bool]int{false: 1, true: 2}[grouped]
		_, tasks := accept(t, s, feedbacks(agent, 1, 8)...)
		begin := func(shift string) {
			t.Helper()
			exec(t, s, `UPDATE herald.agents SET hour = date_trunc('hour', now(), 'UTC') + $2::interval WHERE agent_id = $1`, agent, shift)
		}
		next := func(o Outcome) {
			t.Helper()
			r := newRecordRequest(claim(t, s, tasks[0]), o)
			tasks = tasks[1:]
			if !grouped {
				record(t, s, r.claim, r.outcome)
				return
			}
			if got, err := s.recordGroup(t.Context(), []recordRequest{r}); err != nil || !got[0].answered {
				t.Fatal(got, err)
			}
		}
		expect := func(why, want string) {
			t.Helper()
			if got := value[string](t, s, `SELECT string_agg(concat_ws(' ', round(extract(epoch FROM date_trunc('hour', now(), 'UTC') - hour) / 3600), calls, failed, failures, latency[8]), '; ' ORDER BY hour)
				FROM (SELECT hour, calls, failed, failures, latency FROM herald.agent_hours WHERE agent_id = $1
				      UNION ALL SELECT hour, hour_calls, hour_failed, hour_failures, hour_latency FROM herald.agents WHERE agent_id = $1) x`, agent); got != want {
				t.Errorf("grouped %t, %s: %s, want %s", grouped, why, got, want)
			}
		}
		ok := delivered
		ok.CallTook = 2 * time.Second
		failed := Outcome{Status: Waiting, Reason: "timeout", Stage: "call", Delay: time.Hour, AgentError: "it hung up"}
		next(ok)
		next(failed)
		expect("the first hour", `0 2 1 {"timeout": 1} 1`)
		begin("-5 hours")
		next(Outcome{Status: Skipped, Reason: "no_uri", Stage: "resolve"})
		expect("what is no call begins no hour", `5 2 1 {"timeout": 1} 1`)
		next(failed)
		expect("an hour begins", `5 2 1 {"timeout": 1} 1; 0 1 1 {"timeout": 1} 0`)
		next(ok)
		expect("and goes on", `5 2 1 {"timeout": 1} 1; 0 2 1 {"timeout": 1} 1`)
		begin("1 hour")
		next(ok)
		expect("a record of the hour before, which is over", `5 2 1 {"timeout": 1} 1; 0 2 1 {"timeout": 1} 1; -1 3 1 {"timeout": 1} 2`)
		begin("-5 hours")
		next(ok)
		expect("an hour that is kept already", `5 2 1 {"timeout": 1} 1; 0 2 1 {"timeout": 1} 1; 0 1 0 {} 1`)
	}
}

// TestRecordKeepsAgentsHot: counting a call is a HOT update of agents: it writes no index.
func TestRecordKeepsAgentsHot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 8)...)
	o := delivered
	for i, task := range tasks {
		o.AgentError, o.CallTook = []string{"", "it said 503"}[i%2], time.Duration(1+i)*time.Second
		c := claim(t, s, task)
		counts := `SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) FROM (SELECT 'herald.agents'::regclass AS c) x`
		var before, after, hotBefore, hotAfter int64 // of this session since it last flushed its statistics
		err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), counts).Scan(&before, &hotBefore); err != nil {
				return err
			}
			b := &pgx.Batch{}
			queueRecord(b, newRecordRequest(c, o))
			if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), counts).Scan(&after, &hotAfter)
		})
		if err != nil || after-before != 1 || hotAfter-hotBefore != 1 {
			t.Errorf("record %d: %d updates of agents, %d of them HOT, %v", i+1, after-before, hotAfter-hotBefore, err)
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
	chain, other := uint64(8453), uint64(1)
	for _, tt := range []struct {
		f    AgentFilter
		want string
	}{
		{AgentFilter{}, "3:4/4 6:4/4 2:4/20 1:3/3 4:0/0 5:0/100 7:0/0 8:0/0"},
		{AgentFilter{ChainID: &chain, State: "failed"}, "6:4/4 2:4/20 4:0/0 8:0/0"},
		{AgentFilter{AgentID: "2"}, "2:4/20"},
		{AgentFilter{ChainID: &other}, ""},
	} {
		for limit := range 4 {
			f, got := tt.f, []string{}
			for f.Sort, f.Limit = SortFailing, limit; ; {
				page, err := s.Agents(t.Context(), f)
				heraldtest.Must(t, err)
				for _, r := range page {
					got = append(got, fmt.Sprintf("%s:%d/%d", r.AgentID, r.FailedOfDay, r.CallsOfDay))
					f.After, f.AfterCalls, f.AfterFailed = &Agent{ChainID: r.ChainID, Registry: r.IdentityRegistry, ID: r.AgentID}, r.CallsOfDay, r.FailedOfDay
				}
				if len(page) < cmp.Or(limit, 50) {
					break
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%+v: %v, want %s", f, got, tt.want)
			}
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
		if n, err := s.DropAgentHours(t.Context(), AgentHoursKept, 4); err != nil || n != want {
			t.Errorf("round %d: dropped %d, %v, want %d", i, n, err, want)
		}
		if left := value[int](t, s, `SELECT count(*)::int FROM herald.agent_hours WHERE hour = $1`, oldest); i == 0 && left != 0 {
			t.Errorf("%d of the oldest hour are left", left)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.agent_hours WHERE hour > now() - interval '4 hours'`); n != 6 {
		t.Errorf("%d rows are left", n)
	}
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
		hours, err := s.AgentStats(t.Context(), agentNamed("2"), since)
		if err != nil || len(hours) != want {
			t.Errorf("since %s: %d hours, %v, want %d", since, len(hours), err, want)
		}
		for i, h := range hours {
			if h.Calls != 20 || h.Failed != 2 || !maps.Equal(h.Failures, map[outcome.Reason]int{"timeout": 2}) || len(h.Latency) != latencyBuckets ||
				!h.Hour.Equal(now.Add(-time.Duration(want-1-i)*time.Hour)) {
				t.Errorf("since %s: %+v", since, h)
			}
		}
	}
	if hours, err := s.AgentStats(t.Context(), agentNamed("3"), time.Time{}); err != nil || len(hours) != 0 {
		t.Error(hours, err)
	}
}
