package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// TestGroupRecordsAsSingles: with any outcomes in a group, rows and results are the same as if the outcomes had been
// recorded one by one, in the order of the deliveries' ids.
func TestGroupRecordsAsSingles(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	alone, grouped := newStore(t), newStore(t)
	const agents = 6
	var waiting [2][]ledger.Task // of the store that records alone, and of the store that records in groups
	for round := range 5 {
		for agent := range agents {
			in := feedbacks(agent, round*20+1, random.IntN(20))
			for i, s := range []*Store{alone, grouped} {
				if len(in) > 0 {
					_, tasks := accept(t, s, in...)
					waiting[i] = append(waiting[i], tasks...)
				}
			}
			change := []string{`enabled = NOT enabled`, `state = 'disabled'`, `raised_epoch = epoch`, `totals = '{}'`,
				`state = 'needs_auth'`, fmt.Sprintf(`hour = hour - interval '%d hours'`, round+1)}[random.IntN(6)]
			for _, s := range []*Store{alone, grouped} {
				exec(t, s, `UPDATE herald.agents SET last_ok_at = 'epoch', last_error_at = 'epoch', last_called_at = 'epoch',
					failing_since = CASE WHEN failing_since IS NOT NULL THEN 'epoch'::timestamptz END, `+change+` WHERE agent_id = $1`, agent)
			}
		}
		var requests [2][]recordRequest
		outcomes := map[string]ledger.Outcome{}
		for i, s := range []*Store{alone, grouped} {
			for _, task := range waiting[i] {
				c, err := s.Claim(t.Context(), task.ID, task.N, lease)
				if early := new(ledger.EarlyError); errors.As(err, &early) {
					continue
				}
				heraldtest.Must(t, err)
				if c == nil {
					continue // the delivery returned to the backlog
				}
				if i == 0 {
					outcomes[c.Key] = randomPlainOutcome(random)
				}
				o, ok := outcomes[c.Key]
				if !ok {
					t.Fatalf("round %d: %s was dispatched in one store only", round, c.Key)
				}
				requests[i] = append(requests[i], newRecordRequest(c, o))
			}
			waiting[i] = nil
		}
		if len(requests[0]) != len(requests[1]) {
			t.Fatalf("round %d: %d claims alone, %d for groups", round, len(requests[0]), len(requests[1]))
		}

		recorded := [2]map[string]ledger.Recorded{{}, {}}
		for _, i := range sortMembers(requests[0]) {
			r := requests[0][i]
			recorded[0][r.claim.Key] = record(t, alone, r.claim, r.outcome)
		}
		results, err := grouped.recordGroup(t.Context(), requests[1])
		heraldtest.Must(t, err)
		for i, r := range results {
			if !r.Answered || r.Err != nil {
				t.Fatalf("round %d: %+v is %+v", round, requests[1][i].outcome, r)
			}
			recorded[1][requests[1][i].claim.Key] = r.Answer
		}

		var nexts [2][]string
		for i := range recorded {
			for key, rec := range recorded[i] {
				if rec.Task != nil {
					waiting[i] = append(waiting[i], *rec.Task)
				}
				waiting[i] = append(waiting[i], rec.Next...)
				for _, n := range rec.Next {
					n.At = time.Time{}
					nexts[i] = append(nexts[i], fmt.Sprintf("%+v", n))
				}
				if i == 1 {
					compareRecorded(t, key, recorded[0][key], rec)
				}
			}
			slices.Sort(nexts[i])
		}
		if !slices.Equal(nexts[0], nexts[1]) {
			t.Errorf("round %d: dispatched %v, alone %v", round, nexts[1], nexts[0])
		}
		for what, sql := range rowsToCompare {
			a, b := dumpRows(t, alone, sql), dumpRows(t, grouped, sql)
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Errorf("round %d, %s alone and in a group:\n%s\n%s", round, what, shorten(a[i]), shorten(b[i]))
				}
			}
			if len(a) != len(b) {
				t.Errorf("round %d: %d %s alone, %d in groups", round, len(a), what, len(b))
			}
		}
		if t.Failed() {
			return
		}
		sortTasks := func(a, b ledger.Task) int { return strings.Compare(a.ID.String(), b.ID.String()) }
		slices.SortFunc(waiting[0], sortTasks)
		slices.SortFunc(waiting[1], sortTasks)
	}
}

// allHours selects the ended hours and each agent's current hour.
const allHours = `(SELECT agent_id, calls, failed, failures, latency FROM herald.agent_hours
	UNION ALL SELECT agent_id, hour_calls, hour_failed, hour_failures, hour_latency FROM herald.agents) h`

// rowsToCompare selects all data that a record writes. Times are relative to the time of the write.
var rowsToCompare = map[string]string{
	"deliveries": `SELECT to_jsonb(d) - '{claim_no,seq,accepted_at,created_at,updated_at,handed_at,lease_until,next_attempt_at,finished_at,undelivered_at,delays_until}'::text[]
		|| jsonb_build_object('delays', delays_until = 'infinity', 'handed', handed_at - updated_at, 'next', next_attempt_at - updated_at, 'finished', finished_at - updated_at, 'ended', undelivered_at - updated_at,
		                      'leased', lease_until IS NOT NULL)
		FROM herald.deliveries d ORDER BY id`,
	"attempts": `SELECT to_jsonb(a) - '{started_at,duration_ms}'::text[] || jsonb_build_object('took', duration_ms BETWEEN 0 AND 100000)
		FROM herald.attempts a ORDER BY delivery_id, number, a.started_at`,
	"agents": `SELECT to_jsonb(g) - '{created_at,updated_at,last_ok_at,last_error_at,last_called_at,failing_since,hour,hour_calls,hour_failed,hour_failures,hour_latency}'::text[]
		|| jsonb_build_object('ok now', last_ok_at > 'epoch', 'failed now', last_error_at > 'epoch', 'called now', last_called_at > 'epoch',
		                      'failing since now', failing_since > 'epoch')
		FROM herald.agents g ORDER BY 1`,
	// Sums over hours, because the hour may end between two records.
	"calls": `SELECT jsonb_build_array(agent_id, sum(calls), sum(failed)) FROM ` + allHours + ` GROUP BY agent_id ORDER BY agent_id`,
	"failures": `SELECT jsonb_build_array(agent_id, key, sum(value::int)) FROM ` + allHours + `, jsonb_each_text(failures)
		GROUP BY agent_id, key ORDER BY agent_id, key`,
	"latencies": `SELECT jsonb_build_array(agent_id, i, sum(n)) FROM ` + allHours + `, unnest(latency) WITH ORDINALITY l(n, i)
		GROUP BY agent_id, i ORDER BY agent_id, i`,
}

func dumpRows(t *testing.T, s *Store, sql string) []string {
	t.Helper()
	rows, _ := s.Conns.Query(t.Context(), sql)
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	heraldtest.Must(t, err)
	return out
}

// shorten abbreviates long runs of x.
func shorten(row string) string { return strings.ReplaceAll(row, strings.Repeat("x", 1<<10), "x…") }

func compareRecorded(t *testing.T, key string, alone, grouped ledger.Recorded) {
	t.Helper()
	about := func(a, b time.Time) bool { return a.IsZero() == b.IsZero() && a.Sub(b).Abs() < time.Minute }
	if !about(alone.NextAttemptAt, grouped.NextAttemptAt) || (grouped.Age-alone.Age).Abs() > time.Minute || grouped.Age <= 0 {
		t.Errorf("%s: %+v, alone %+v", key, grouped, alone)
	}
	if (alone.Task == nil) != (grouped.Task == nil) {
		t.Errorf("%s: %+v, alone %+v", key, grouped.Task, alone.Task)
	}
	if alone.Task != nil && grouped.Task != nil {
		a, b := *alone.Task, *grouped.Task
		if !about(a.At, b.At) || !b.At.Equal(grouped.NextAttemptAt) {
			t.Errorf("%s: %+v, alone %+v", key, b, a)
		}
		a.At, b.At = time.Time{}, time.Time{}
		if a != b {
			t.Errorf("%s: %+v, alone %+v", key, b, a)
		}
	}
}

// randomPlainOutcome returns an outcome that may be recorded in a group, with random fields.
func randomPlainOutcome(random *rand.Rand) ledger.Outcome {
	some := func() bool { return random.IntN(2) == 0 }
	text := func(list ...string) string { return list[random.IntN(len(list))] }
	raw := func() json.RawMessage {
		return []json.RawMessage{nil, json.RawMessage(`{"a": [1, "b\u0000", null]}`), json.RawMessage(`null`), json.RawMessage(`no JSON`),
			json.RawMessage(`"` + strings.Repeat("x", 17<<10) + `"`), json.RawMessage(fmt.Sprint(random.IntN(1e9)))}[random.IntN(6)]
	}
	o := ledger.Outcome{Called: some(), EndpointOfJob: random.IntN(4) == 0, Stage: text("check", "call", "record"), ToolName: text("", "a", "b"), Endpoint: text("", "https://a.example", "https://b.example"),
		FileVerification: text("", "raw", "not_given"), FileSource: text("", "ipfs"), Arguments: raw(), Response: raw(), Result: raw(),
		Protocol: text("", "2025-06-18", "2025-03-26"), AgentOK: some(), AgentError: text("", "", "it said 503", "it hung \x00 up"),
		ServerInfo: raw(), Tools: raw(), Error: text("", "{it} said, \"503\\\"", "NULL", "\xff")}
	o.CallTook = time.Duration(random.IntN(2)) * time.Duration(1<<random.IntN(38)) // up to more than a minute
	switch random.IntN(6) {
	case 0:
		o.Status, o.Reason = outcome.Rejected, outcome.ToolError
	case 1:
		o.Status, o.Reason = outcome.Skipped, outcome.NoURI
	case 2:
		o.Status, o.Reason = outcome.Dead, outcome.Timeout
	case 3:
		o.Status, o.Reason, o.Task, o.Delay = outcome.Waiting, outcome.ServerError, some(), time.Duration(random.IntN(2))*time.Hour
	default:
		o.Status = outcome.Delivered
	}
	return o
}
