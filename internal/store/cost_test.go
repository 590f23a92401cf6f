package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wire is the traffic of one or more connections, in the trace format of pgproto3.
type wire struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// trips counts the round trips and the ended transactions.
func (w *wire) trips() (trips, transactions int, said string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	said = w.buf.String()
	w.buf.Reset()
	before := "B"
	for line := range strings.Lines(said) {
		f := strings.Split(line, "\t")
		if f[0] == "F" && before == "B" {
			trips++
		}
		if f[0] == "B" && f[1] == "ReadyForQuery" && strings.TrimSpace(f[3]) == "I" {
			transactions++
		}
		before = f[0]
	}
	return trips, transactions, said
}

// TestWarmDelivery: a delivery costs two round trips and two commits (docs/design/ledger.md). The second one also
// dispatches the agent's next deliveries.
func TestWarmDelivery(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	accept(t, openStore(t, url), append(feedbacks(1, 1, 12), feedbacks(2, 1, 1)...)...)
	var w wire
	s := openAdjusted(t, url, 2, func(c *pgxpool.Config) {
		c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.PgConn().Frontend().Trace(&w, pgproto3.TracerOptions{SuppressTimestamps: true})
			return nil
		}
	})
	rows, err := s.Conns.Query(t.Context(), `SELECT id, dispatch, kind, attempts, false FROM herald.deliveries WHERE handed_at IS NOT NULL ORDER BY seq`)
	heraldtest.Must(t, err)
	tasks, err := pgx.CollectRows(rows, scanTask)
	heraldtest.Must(t, err)
	record(t, s, claim(t, s, tasks[0]), delivered)                     // cold: prepares the statements
	wait := record(t, s, claim(t, s, tasks[8]), waiting(-time.Second)) // of the agent that has no other delivery
	record(t, s, claim(t, s, *wait.Task), waiting(time.Hour))          // a claim after a wait returns more data
	exec(t, s, `UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, wait.Task.ID)
	w.trips()
	check := func(what string) {
		t.Helper()
		if trips, commits, said := w.trips(); trips != 1 || commits != 1 {
			t.Errorf("%s: %d round trips, %d commits:\n%s", what, trips, commits, said)
		}
	}
	c := claim(t, s, tasks[2])
	check("claim")
	if r := record(t, s, c, delivered); len(r.Next) != 1 {
		t.Errorf("%+v", r)
	}
	check("record")
	c = claim(t, s, *wait.Task)
	if trips, commits, said := w.trips(); trips != 2 || commits != 2 { // groups contain no claims after a wait
		t.Errorf("claim after a wait: %d round trips, %d commits:\n%s", trips, commits, said)
	}
	record(t, s, c, delivered)
	check("record after a wait")
}

// TestQueryPlans: on ten thousand rows, no statement of operators, intake or the reconciler that TestGroupPlans does not
// look at scans a whole table, and a record reads no partition of attempts.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	fill, err := os.ReadFile("testdata/ten_thousand.sql")
	heraldtest.Must(t, err)
	exec(t, s, string(fill))
	exec(t, s, `VACUUM ANALYZE herald.history, herald.work, herald.agents, herald.attempts`)
	const id = `'00000000-0000-0000-0000-000000000001'`
	for name, st := range map[string]struct{ sql, args string }{
		"record":        {statements.Text("record"), groupArguments("record")},
		"agents_of":     {statements.Text("agents_of"), `ARRAY[` + id + `]::uuid[]`},
		"displace":      {statements.Text("displace"), id + `, 'k'`},
		"switched_off":  {statements.Text("switched_off"), `true, 500`},
		"of all agents": {statements.Text("switched_off"), `false, 500`},
		"expire":        {statements.Text("expire"), `'30 days', 500, 1000`},
	} {
		plan := explain(t, s, st.sql, st.args)
		for _, scan := range regexp.MustCompile(`Seq Scan on (history|work|agents|attempts|hints)\w*`).FindAllString(plan, -1) {
			t.Errorf("%s: %s\n%s", name, scan, plan)
		}
		if n := len(regexp.MustCompile(`(?m)(Index|Bitmap Heap|Seq) Scan.* on attempts_\d+`).FindAllString(plan, -1)); name == "record" && n > 0 {
			t.Errorf("record reads attempts:\n%s", plan)
		}
	}
}

// TestPlansOfAFlood: when the planner's statistics are older than a flood of one agent, the statements of another agent
// must not read the flood's rows.
func TestPlansOfAFlood(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	rows := func(agent, from, to int, ended bool) {
		exec(t, s, `INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, finished_at)
			SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', $1, n::text, n, CASE WHEN $4 THEN 'delivered' ELSE 'queued' END, CASE WHEN $4 THEN now() END
			  FROM generate_series($2::int, $3::int) n`, agent, from, to, ended)
		exec(t, s, `INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq)
			SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq FROM herald.history
			 WHERE order_seq BETWEEN $1 AND $2 AND finished_at IS NULL`, from, to)
	}
	const accept = `ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], '{k}', '{NewFeedback}', '{8453}', '{0xaa}', '{7}', '{o}', '{1}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{false}', '{NULL}', '{chain}', '{0}', false, 8, 2, true`
	const dispatch = `'{8453}', '{0xaa}', '{7}', NULL, NULL, 8, 2`
	check := func(when string) {
		t.Helper()
		for name, st := range map[string][2]string{"accept": {statements.Text("accept"), accept}, "dispatch": {statements.Text("dispatch"), dispatch}} {
			plan := explain(t, s, st[0], st[1])
			for line := range strings.Lines(plan) {
				var read int
				if _, rest, ok := strings.Cut(line, "actual time="); ok {
					if _, rest, ok = strings.Cut(rest, "rows="); ok {
						_, _ = fmt.Sscan(strings.Fields(rest)[0], &read) // 0 if it cannot be parsed
					}
				}
				removed := 0
				if _, rest, ok := strings.Cut(line, "Rows Removed by Filter: "); ok {
					_, _ = fmt.Sscan(rest, &removed)
				}
				if read > 100 || removed > ledger.MaxDispatchedPerAgent { // up to eight are read to decide their order
					t.Errorf("%s, %s reads what is not its agent's:\n%s", when, name, plan)
					break
				}
			}
		}
	}
	rows(1, 1, 5000, true)
	exec(t, s, `ANALYZE herald.history, herald.work`)
	rows(1, 5001, 5400, false) // too few to be analyzed
	rows(7, 5401, 5410, false)
	check("a line that the statistics do not know")
	rows(1, 10001, 20000, false)
	exec(t, s, `UPDATE herald.work SET seq = seq + 100000 WHERE agent_id = 7`)
	exec(t, s, `ANALYZE herald.history, herald.work`)
	check("a table that is mostly one agent's line")
}

// explain runs a statement with a generic plan, as the pool does, and rolls it back.
func explain(t *testing.T, s *Store, sql, args string) string {
	t.Helper()
	answers := execScript(t, s, fmt.Sprintf("BEGIN; PREPARE planned AS %s; EXPLAIN (ANALYZE) EXECUTE planned%s; DEALLOCATE planned; ROLLBACK",
		sql, strings.TrimSuffix("("+args+")", "()")))
	var b strings.Builder
	for _, row := range answers[2].Rows {
		b.Write(row[0])
		b.WriteByte('\n')
	}
	return b.String()
}

// TestClaimWritesNoIndex: a first claim is a HOT update. This requires that no index of deliveries covers a column that
// the claim changes, and free space on the page.
func TestClaimWritesNoIndex(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...) // with more, a snapshot could fill the page with old versions
	for i, task := range tasks {
		var updated, hot int64 // by this session since it last flushed its statistics
		err := pgx.BeginFunc(t.Context(), s.Conns, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), statements.Text("claim"), claimArgs([]uuid.UUID{task.ID}, []int{task.N}, time.Minute, nil)...); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c)
				FROM (SELECT 'herald.work'::regclass AS c) x`).Scan(&updated, &hot)
		})
		if err != nil || updated == 0 || hot != updated {
			t.Errorf("claim %d: %d rows updated, %d of them HOT, %v", i+1, updated, hot, err)
		}
	}
}

// BenchmarkDelivery measures the two statements of a warm delivery, for 64 agents, one delivery at a time.
func BenchmarkDelivery(b *testing.B) {
	s := newStore(b)
	var queue []ledger.Task
	for agent := range 64 {
		for from := 1; from <= b.N/64+1; from += ledger.MaxAccept {
			_, tasks := accept(b, s, feedbacks(agent, from, min(ledger.MaxAccept, b.N/64+2-from))...)
			queue = append(queue, tasks...)
		}
	}
	b.ResetTimer()
	for i := 0; i < b.N && i < len(queue); i++ {
		queue = append(queue, record(b, s, claim(b, s, queue[i]), delivered).Next...)
	}
}

// BenchmarkRefusal measures the refusal of a stale task.
func BenchmarkRefusal(b *testing.B) {
	s := newStore(b)
	id := uuid.New()
	for b.Loop() {
		if c, err := s.Claim(b.Context(), id, 1, lease); c != nil || err != nil {
			b.Fatal(c, err)
		}
	}
}
