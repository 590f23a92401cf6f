package records_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// newStore returns the ledger and the records of a migrated database of the test's own.
func newStore(t testing.TB) storetest.Postgres {
	t.Helper()
	return newStoreWith(t, func(*pgxpool.Config) {})
}

// newStoreWith is newStore with a change of the pool's configuration.
func newStoreWith(t testing.TB, adjust func(*pgxpool.Config)) storetest.Postgres {
	t.Helper()
	url := heraldtest.Postgres(t, postgres.Migrate)
	pool, err := postgres.OpenAdjusted(postgres.Config{URL: secret.New(url), MaxConns: 12}, adjust)
	heraldtest.Must(t, err)
	s := store.New(pool)
	t.Cleanup(s.Close)
	return storetest.JoinRecords(s)
}

const lease = 2 * time.Minute

// feedback returns the NewFeedback with the given index of an agent.
func feedback(agent, index int) job.Job { return storetest.Feedback(agent, index) }

func feedbacks(agent, from, n int) []ledger.Intake {
	in := make([]ledger.Intake, n)
	for i := range in {
		in[i].Job = feedback(agent, from+i)
	}
	return in
}

// enable enables or disables an agent.
func enable(t testing.TB, s storetest.Postgres, agent int, enabled bool) {
	t.Helper()
	_, _, err := s.EnableAgent(t.Context(), storetest.Agent(agent), enabled)
	heraldtest.Must(t, err)
}

func accept(t testing.TB, s storetest.Postgres, in ...ledger.Intake) ([]ledger.Acceptance, []ledger.Task) {
	t.Helper()
	out, tasks, err := s.Accept(t.Context(), in)
	heraldtest.Must(t, err)
	return out, tasks
}

// acceptOne accepts one job and returns its task.
func acceptOne(t testing.TB, s storetest.Postgres, j job.Job) ledger.Task {
	t.Helper()
	out, tasks := accept(t, s, ledger.Intake{Job: j})
	if out[0].Verdict != ledger.Accepted || len(tasks) != 1 || tasks[0].ID != out[0].ID {
		t.Fatalf("accepted %+v, dispatched %+v", out, tasks)
	}
	return tasks[0]
}

func claim(t testing.TB, s storetest.Postgres, task ledger.Task) *ledger.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), task.ID, task.N, lease)
	if err != nil || c == nil {
		t.Fatalf("claim of %+v: %+v, %v", task, c, err)
	}
	return c
}

// toRun returns tasks without the ended ones.
func toRun(tasks []ledger.Task) []ledger.Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t ledger.Task) bool { return t.Ended })
}

func record(t testing.TB, s storetest.Postgres, c *ledger.Claim, o ledger.Outcome) ledger.Recorded {
	t.Helper()
	r, err := s.Record(t.Context(), c, o)
	heraldtest.Must(t, err)
	return r
}

func read(t testing.TB, s storetest.Postgres, id uuid.UUID) ledger.Delivery {
	t.Helper()
	d, err := s.Delivery(t.Context(), id)
	heraldtest.Must(t, err)
	return d
}

func exec(t testing.TB, s storetest.Postgres, sql string, args ...any) {
	t.Helper()
	if _, err := s.Conns.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// holdOpen executes a statement in a transaction that stays open until the returned function commits it.
func holdOpen(t testing.TB, s storetest.Postgres, sql string, args ...any) (commit func()) {
	t.Helper()
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), sql, args...)
	heraldtest.Must(t, err)
	return func() {
		t.Helper()
		heraldtest.Must(t, tx.Commit(t.Context()))
	}
}

// value queries one value.
func value[T any](t testing.TB, s storetest.Postgres, sql string, args ...any) T {
	t.Helper()
	rows, err := s.Conns.Query(t.Context(), sql, args...)
	heraldtest.Must(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// countDispatched returns the number of dispatched deliveries of one agent.
func countDispatched(t testing.TB, s storetest.Postgres) int {
	t.Helper()
	return value[int](t, s, `SELECT coalesce(max(n), 0)::int FROM (SELECT count(*) AS n FROM herald.deliveries
		WHERE status IN ('queued', 'running') AND handed_at IS NOT NULL GROUP BY chain_id, identity_registry, agent_id) x`)
}

var delivered = ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true}

// waiting returns an outcome that waits d with a task.
func waiting(d time.Duration) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: d, Task: true, Called: true, Stage: "call", Error: "it said 503"}
}

// ending returns an outcome that leaves the delivery with the given status.
func ending(status outcome.Status, why outcome.Reason) ledger.Outcome {
	return ledger.Outcome{Status: status, Reason: why, Stage: "call", Called: true, Error: "because", Delay: time.Hour}
}

func execScript(t testing.TB, s storetest.Postgres, sql string) []*pgconn.Result {
	t.Helper()
	conn, err := s.Conns.Acquire(t.Context())
	heraldtest.Must(t, err)
	defer conn.Release()
	answers, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
	return answers
}

// explain runs a statement with a generic plan, as the pool does, and rolls it back.
func explain(t *testing.T, s storetest.Postgres, sql, args string) string {
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

// TestNoPassword: no error contains the password, with any fault of the URL or the network.
func TestNoPassword(t *testing.T) {
	t.Parallel()
	const password = "s3cr3tPassw0rd"
	id := job.IDOf("nothing")
	address := heraldtest.Address(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, url := range []string{
		"postgres://me:" + password + "@" + address + "/db",
		"postgres://me:" + password + "@" + address + "," + address + "/db?sslmode=disable",
		"host=127.0.0.1 port=1 user=me password=" + password,
		"postgres://me:" + password + "@/db?host=/nowhere/" + "x",
		"postgres://me:" + password + "@[bad/db",
		"postgres://me:" + password + "%zz@host/db",
		"postgres://me:" + password + "@host:notaport/db",
		"postgres://me:" + password + "@host/db?sslmode=" + password,
		"postgres://me:" + password + "@host/db?connect_timeout=" + password,
		"password='" + password,
		password,
	} {
		look := func(what string, err error) {
			if err == nil {
				t.Errorf("%s: no error", what)
				return
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if s := fmt.Sprintf("%v %+v %q", e, e, e); strings.Contains(s, password) {
					t.Errorf("%s tells the password: %s", what, s)
				}
			}
			if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
				t.Errorf("%s carries the connection's configuration", what)
			}
		}
		st, err := store.Open(postgres.Config{URL: secret.New(url), ConnectTimeout: time.Second})
		if err != nil {
			look("Open", err)
		} else {
			s := storetest.JoinRecords(st)
			look("Ping", s.Ping(ctx))
			_, err = s.Claim(ctx, id, 1, lease)
			look("Claim", err)
			_, err = s.Record(ctx, &ledger.Claim{}, delivered)
			look("Record", err)
			_, _, err = s.Accept(ctx, feedbacks(1, 1, 1))
			look("Accept", err)
			_, err = s.Lead(ctx, nil)
			look("Lead", err)
			_, err = s.Adopt(ctx, &ledger.Claim{}, ledger.SpooledOutcome{Outcome: delivered})
			look("Adopt", err)
			_, _, _, err = s.Replay(ctx, []uuid.UUID{id}, false)
			look("Replay", err)
			_, _, err = s.Clock(ctx)
			look("Clock", err)
			_, _, err = s.EnableAgent(ctx, storetest.Agent(1), true)
			look("EnableAgent", err)
			_, err = s.BeginAudit(ctx, records.Audit{})
			look("BeginAudit", err)
			_, err = retention.New(s.Pool).DropPartitions(ctx, time.Hour)
			look("DropPartitions", err)
			s.Close()
		}
		_, err = postgres.Migrate(ctx, secret.New(url))
		look("Migrate", err)
		_, err = postgres.Migrations(ctx, secret.New(url))
		look("Migrations", err)
	}
}
