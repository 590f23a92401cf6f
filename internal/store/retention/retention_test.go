package retention_test

import (
	"errors"
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
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// newStore returns a ledger on a migrated database of the test's own.
func newStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(postgres.Config{URL: secret.New(heraldtest.Postgres(t, postgres.Migrate)), MaxConns: 12})
	heraldtest.Must(t, err)
	t.Cleanup(s.Close)
	return s
}

func feedback(agent, index int) job.Job { return storetest.Feedback(agent, index) }

func feedbacks(agent, from, n int) []ledger.Intake {
	in := make([]ledger.Intake, n)
	for i := range in {
		in[i].Job = feedback(agent, from+i)
	}
	return in
}

func accept(t *testing.T, s *store.Store, in ...ledger.Intake) ([]ledger.Acceptance, []ledger.Task) {
	t.Helper()
	out, tasks, err := s.Accept(t.Context(), in)
	heraldtest.Must(t, err)
	return out, tasks
}

func claim(t *testing.T, s *store.Store, task ledger.Task) *ledger.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), task.ID, task.N, 2*time.Minute)
	if err != nil || c == nil {
		t.Fatalf("claim of %+v: %+v, %v", task, c, err)
	}
	return c
}

func record(t *testing.T, s *store.Store, c *ledger.Claim, o ledger.Outcome) {
	t.Helper()
	_, err := s.Record(t.Context(), c, o)
	heraldtest.Must(t, err)
}

func read(t *testing.T, s *store.Store, id uuid.UUID) ledger.Delivery {
	t.Helper()
	d, err := s.Delivery(t.Context(), id)
	heraldtest.Must(t, err)
	return d
}

func exec(t *testing.T, s *store.Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.Conns.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value queries one value.
func value[T any](t *testing.T, s *store.Store, sql string, args ...any) T {
	t.Helper()
	rows, err := s.Conns.Query(t.Context(), sql, args...)
	heraldtest.Must(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

var (
	delivered = ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true}
	held      = ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Stage: "call", Called: true,
		Error: "because", Delay: time.Hour}
)

// waiting returns an outcome that waits d with a task.
func waiting(d time.Duration) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: d, Task: true, Called: true,
		Stage: "call", Error: "it said 503"}
}

func TestRetain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const day = 24 * time.Hour
	_, tasks := accept(t, s, feedbacks(1, 1, 7)...)
	ok := delivered
	ok.Result = []byte(`{"taken": true}`)
	for _, x := range tasks[:3] {
		record(t, s, claim(t, s, x), ok)
	}
	record(t, s, claim(t, s, tasks[3]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[4]), held)
	running := claim(t, s, tasks[5])
	exec(t, s, `UPDATE herald.deliveries SET secret_headers = 'sealed', error = 'e', accepted_at = now() - interval '90 days', created_at = now() - interval '90 days'`)
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '40 days' WHERE order_seq IN (1, 2)`)
	// The third delivery is younger than the age, by less than AcceptSkew.
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '29 days 23 hours 30 minutes' WHERE order_seq = 3`)
	old, _ := accept(t, s, ledger.Intake{Job: feedback(2, 1), Refused: "bytes", Key: "invalid:1"}) // has only an error
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE id = $1`, old[0].ID)
	left := func() int {
		t.Helper()
		return value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE job IS NOT NULL AND secret_headers IS NOT NULL AND error IS NOT NULL`)
	}
	for i, want := range []int{2, 1, 0} {
		if n, err := retention.New(s.Pool).Retain(t.Context(), 30*day, 2); n != want || err != nil {
			t.Errorf("call %d: %d rows, %v", i+1, n, err)
		}
	}
	heraldtest.Equal(t, "rows carry something", left(), 5)
	for i, x := range tasks {
		d := read(t, s, x.ID)
		if gone := i < 2; (d.Job == nil) != gone || (d.Result == nil) != (gone || i > 2) || d.Key == "" || d.Status == "" {
			t.Errorf("%d: %+v", i, d)
		}
	}
	// Known jobs stay known, and a running delivery's outcome is recorded.
	if out, _ := accept(t, s, feedbacks(1, 1, 1)...); out[0].Verdict != ledger.Known || out[0].Status != outcome.Delivered {
		t.Errorf("%+v", out)
	}
	record(t, s, running, delivered)
	// From the default partition, only old attempts of ended deliveries are deleted.
	const put = `INSERT INTO herald.attempts_default (delivery_id, number, started_at, stage) VALUES ($1, 9, $2, 'call')`
	gone := time.Now().Add(-500 * day)
	for _, id := range []uuid.UUID{tasks[0].ID, tasks[3].ID, uuid.New()} {
		exec(t, s, put, id, gone)
	}
	if n, err := retention.New(s.Pool).Retain(t.Context(), 30*day, 10); n != 2 || err != nil {
		t.Error(n, err)
	}
	if id := value[uuid.UUID](t, s, `SELECT delivery_id FROM herald.attempts WHERE number = 9`); id != tasks[3].ID {
		t.Errorf("the attempt of %s stayed", id)
	}
}

func TestDropPartitions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const week = 7 * 24 * time.Hour
	monday := value[time.Time](t, s, `SELECT date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'`)
	for back := 1; back <= 6; back++ {
		exec(t, s, `SELECT herald.ensure_attempt_partitions($1, 0)`, monday.Add(-time.Duration(back)*week))
	}
	weeks := func() []string {
		t.Helper()
		return strings.Fields(value[string](t, s, `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class c JOIN pg_inherits i ON c.oid = i.inhrelid
			WHERE inhparent = 'herald.attempts'::regclass AND relname ~ '^attempts_[0-9]' AND relname < 'attempts_' || $1`, monday.Format("20060102")))
	}
	name := func(back int) string {
		return "attempts_" + monday.Add(-time.Duration(back)*week).Format("20060102")
	}
	if len(weeks()) != 6 {
		t.Fatal(weeks())
	}
	// The sixth week before contains an attempt of a replayed delivery, and the fifth one of an ended delivery. Tables
	// with similar names stay.
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	record(t, s, claim(t, s, tasks[1]), delivered)
	for i, back := range []int{6, 5} {
		exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES ($1, 1, $2, 'call')`, tasks[i].ID, monday.Add(-time.Duration(back)*week+time.Hour))
	}
	exec(t, s, `UPDATE herald.deliveries SET attempts = 1, budget_base = 1, replays = 1 WHERE id = $1`, tasks[0].ID)
	exec(t, s, `UPDATE herald.history SET created_at = $1 WHERE id = ANY($2)`, monday.Add(-6*week), []uuid.UUID{tasks[0].ID, tasks[1].ID})
	exec(t, s, `CREATE TABLE herald.attempts_19990104 (a int)`)
	// The third week before ended two weeks before this week began.
	age := value[time.Duration](t, s, `SELECT now() - $1::timestamptz`, monday) + 2*week - time.Minute
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), age); n != 3 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	if got, want := weeks(), []string{name(6), name(2), name(1)}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), age); n != 0 || err != nil {
		t.Errorf("dropped %d more, %v", n, err)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'skipped', handed_at = NULL, finished_at = now() WHERE id = $1`, tasks[0].ID)
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), age); n != 1 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	if value[*string](t, s, `SELECT to_regclass('herald.attempts_19990104')::text`) == nil {
		t.Error("a table that is no partition was dropped")
	}
	if _, err := retention.New(s.Pool).DropPartitions(t.Context(), 0); err == nil {
		t.Error("an age of nothing was taken")
	}
}

// TestDropPartitionsGivesUp: it does not wait long for its lock, because all other statements queue behind it.
func TestDropPartitionsGivesUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `SELECT herald.ensure_attempt_partitions(now() - interval '10 weeks', 0)`)
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE herald.attempts IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n, err := retention.New(s.Pool).DropPartitions(t.Context(), 24*time.Hour)
	var pe *pgconn.PgError
	if n != 0 || !errors.As(err, &pe) || pe.Code != "55P03" || time.Since(began) > 10*time.Second {
		t.Errorf("%d, %v after %s", n, err, time.Since(began))
	}
	heraldtest.Must(t, tx.Rollback(t.Context()))
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), 24*time.Hour); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestFastClockKeepsOpenAttempts: the clock of Postgres is 100 days ahead. A week that is old by both clocks stays if it has
// an attempt of an open delivery.
func TestFastClockKeepsOpenAttempts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const day = 24 * time.Hour
	old := time.Now().Add(-50 * day)
	exec(t, s, `SELECT herald.ensure_attempt_partitions($1, 0)`, old)
	_, tasks := accept(t, s, feedbacks(1, 1, 1)...)
	exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES ($1, 1, $2, 'call')`, tasks[0].ID, old)
	exec(t, s, `UPDATE herald.deliveries SET attempts = 1, budget_base = 1, replays = 1`)
	exec(t, s, `UPDATE herald.history SET created_at = $1`, old)
	storetest.SetClockAhead(t, s.Conns)
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), 30*day); n != 0 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'skipped', handed_at = NULL, finished_at = now()`)
	if n, err := retention.New(s.Pool).DropPartitions(t.Context(), 30*day); n != 1 || err != nil {
		t.Errorf("dropped %d after its end, %v", n, err)
	}
}

// TestFastClockOfPostgres: the clock of Postgres is 100 days ahead. Nothing is deleted or expires, because by the clock
// of the worker's machine nothing is old.
func TestFastClockOfPostgres(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const day = 24 * time.Hour
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	record(t, s, claim(t, s, tasks[0]), delivered)
	exec(t, s, `INSERT INTO herald.attempts_default (delivery_id, number, started_at, stage) VALUES ($1, 9, $2, 'call')`,
		tasks[0].ID, time.Now().Add(-29*day))
	exec(t, s, `INSERT INTO herald.agent_hours (hour, chain_id, identity_registry, agent_id, calls, failed, failures, latency)
		SELECT date_trunc('hour', now()), chain_id, identity_registry, agent_id, 1, 0, '{}', '{}' FROM herald.agents`)
	storetest.SetClockAhead(t, s.Conns)
	old := retention.New(s.Pool)
	for what, deletes := range map[string]func() (int, error){
		"expired deliveries": func() (int, error) { return s.Expire(t.Context(), 30*day, 10) },
		"contents":           func() (int, error) { return old.Retain(t.Context(), 30*day, 10) },
		"weeks":              func() (int, error) { return old.DropPartitions(t.Context(), 30*day) },
		"hours":              func() (int, error) { return old.DropAgentHours(t.Context(), retention.AgentHoursKept, 10) },
	} {
		if n, err := deletes(); n != 0 || err != nil {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
}
