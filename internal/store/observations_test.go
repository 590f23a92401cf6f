package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/jackc/pgx/v5"
)

// TestEndedHourMovesToAgentHours: when an hour ends, the counts in the agent's row move to agent_hours, once. The hour
// never decreases.
func TestEndedHourMovesToAgentHours(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	hour := func() time.Time { return value[time.Time](t, s, `SELECT date_trunc('hour', now(), 'UTC')`) }
	var wrong []string
	playHour := func(agent int, grouped bool) {
		_, tasks := accept(t, s, feedbacks(agent, 1, 8)...)
		begin := func(shift string) {
			t.Helper()
			exec(t, s, `UPDATE herald.agents SET hour = date_trunc('hour', now(), 'UTC') + $2::interval WHERE agent_id = $1`, agent, shift)
		}
		next := func(o ledger.Outcome) {
			t.Helper()
			r := newRecordRequest(claim(t, s, tasks[0]), o)
			tasks = tasks[1:]
			if !grouped {
				record(t, s, r.claim, r.outcome)
				return
			}
			if got, err := s.recordGroup(t.Context(), []recordRequest{r}); err != nil || !got[0].Answered {
				t.Fatal(got, err)
			}
		}
		expect := func(why, want string) {
			t.Helper()
			if got := value[string](t, s, `SELECT string_agg(concat_ws(' ', round(extract(epoch FROM date_trunc('hour', now(), 'UTC') - hour) / 3600), calls, failed, failures, latency[8]), '; ' ORDER BY hour)
				FROM (SELECT hour, calls, failed, failures, latency FROM herald.agent_hours WHERE agent_id = $1
				      UNION ALL SELECT hour, hour_calls, hour_failed, hour_failures, hour_latency FROM herald.agents WHERE agent_id = $1) x`, agent); got != want {
				wrong = append(wrong, fmt.Sprintf("grouped %t, %s: %s, want %s", grouped, why, got, want))
			}
		}
		ok := delivered
		ok.CallTook = 2 * time.Second
		failed := ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Stage: "call", Delay: time.Hour, AgentError: "it hung up"}
		next(ok)
		next(failed)
		expect("the first hour", `0 2 1 {"timeout": 1} 1`)
		begin("-5 hours")
		next(ledger.Outcome{Status: outcome.Skipped, Reason: "no_uri", Stage: "resolve"})
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
	for agent, grouped := range []bool{false, true} {
		began := hour()
		playHour(1+agent, grouped)
		if len(wrong) > 0 && hour() != began { // the clock's hour changed meanwhile, which happens once
			wrong = nil
			playHour(3+agent, grouped)
		}
	}
	if len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
}

// TestRecordKeepsAgentsHot: counting a call is a HOT update of agents: it writes no index. Only the first contact with
// the agent does, because it changes the agent's state.
func TestRecordKeepsAgentsHot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 8)...)
	o := delivered
	record(t, s, claim(t, s, tasks[0]), o)
	for i, task := range tasks[1:] {
		o.AgentError, o.CallTook = []string{"", "it said 503"}[i%2], time.Duration(1+i)*time.Second
		c := claim(t, s, task)
		counts := `SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) FROM (SELECT 'herald.agents'::regclass AS c) x`
		var before, after, hotBefore, hotAfter int64 // of this session since it last flushed its statistics
		err := pgx.BeginFunc(t.Context(), s.Conns, func(tx pgx.Tx) error {
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
