package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// contract contains the tables and columns, with their types, that other programs may read. The schema may contain
// more.
var contract = map[string]string{
	"deliveries": `id uuid, key text, kind text, chain_id bigint, agent_id numeric(78,0), order_key text, order_seq numeric(20,0),
		job jsonb, status text, reason text, attempts integer, dispatch integer, claim_no bigint, lease_until timestamptz,
		next_attempt_at timestamptz, tool_name text, endpoint text, file_verification text, file_source text, result jsonb,
		error text, created_at timestamptz, updated_at timestamptz, finished_at timestamptz`,
	"attempts": `delivery_id uuid, number integer, started_at timestamptz, duration_ms integer, stage text, outcome text,
		reason text, error text, arguments jsonb, response jsonb, protocol text`,
	"agents": `chain_id bigint, identity_registry text, agent_id numeric(78,0), epoch bigint, enabled boolean, policy jsonb,
		endpoint text, server_info jsonb, protocol text, tools jsonb, state text, last_ok_at timestamptz, last_error text,
		last_error_at timestamptz, totals jsonb`,
	"agent_mcp_tokens": `chain_id bigint, identity_registry text, agent_id numeric(78,0), origin text, scheme text, header text,
		issuer text, ciphertext bytea, key_id bigint, created_at timestamptz, updated_at timestamptz, expires_at timestamptz`,
	"chain_cursors": `chain_id bigint, blocks jsonb`,
	"action_results": `id text, job_id text, trigger_id text, event_id text, action_type text, status text,
		executed_at timestamptz, duration_ms integer, error_message text, response_data jsonb, retry_count integer`,
}

var keys = map[string]string{
	"history": "id", "attempts": "delivery_id number started_at", "agents": "chain_id identity_registry agent_id",
	"agent_mcp_tokens": "chain_id identity_registry agent_id origin",
}

func TestContract(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for table, columns := range contract {
		for _, column := range strings.Split(strings.Join(strings.Fields(columns), " "), ", ") {
			name, want, _ := strings.Cut(column, " ")
			got := value[string](t, s, `SELECT coalesce(max(CASE data_type WHEN 'timestamp with time zone' THEN 'timestamptz'
				WHEN 'numeric' THEN format('numeric(%s,%s)', numeric_precision, numeric_scale) ELSE data_type END), 'missing')
				FROM information_schema.columns WHERE table_schema = 'herald' AND table_name = $1 AND column_name = $2`, table, name)
			if got != want {
				t.Errorf("%s.%s is %s, the contract says %s", table, name, got, want)
			}
		}
	}
	for table, key := range keys {
		got := value[string](t, s, `SELECT string_agg(a.attname, ' ' ORDER BY p.ord) FROM pg_constraint c, unnest(c.conkey) WITH ORDINALITY p(num, ord), pg_attribute a
				WHERE c.conrelid = ('herald.' || $1)::regclass AND c.contype = 'p' AND a.attrelid = c.conrelid AND a.attnum = p.num`, table)
		if got != key {
			t.Errorf("%s has the key %s, the contract says %s", table, got, key)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM information_schema.columns WHERE table_schema = 'herald' AND table_name = 'action_results'`); n != 11 {
		t.Errorf("the view has %d columns", n)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM pg_constraint WHERE contype = 'f' AND conrelid = 'herald.attempts'::regclass`); n != 0 {
		t.Error("attempts has a foreign key")
	}
}

func TestActionResults(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 4)...)
	record(t, s, claim(t, s, *record(t, s, claim(t, s, tasks[0]), waiting(-time.Second)).Task), delivered)
	record(t, s, claim(t, s, tasks[1]), Outcome{Status: Rejected, Reason: "tool_error", Error: "no", Called: true, Response: []byte(`{"isError": true}`)})
	claim(t, s, tasks[2])
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s', attempts = 1 WHERE id = $1`, tasks[2].ID)
	if _, _, err := s.ExpireLeases(t.Context(), 10, 1); err != nil {
		t.Fatal(err)
	}
	claim(t, s, tasks[3]) // running, so it has no row yet
	rows, err := s.pool.Query(t.Context(), `SELECT concat_ws('|', (SELECT order_seq FROM herald.deliveries WHERE id::text = job_id), action_type, status,
		retry_count, error_message, response_data) FROM herald.action_results ORDER BY executed_at`)
	heraldtest.Must(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	heraldtest.Must(t, err)
	want := []string{"1|mcp|retrying|0|server_error: it said 503", "1|mcp|success|1", `2|mcp|failed|0|tool_error: no|{"isError": true}`,
		"3|mcp|failed|0|outcome_unknown: the worker ended before it could record what happened"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestMigrateAtOnce: four processes migrate an empty database concurrently.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := secret.New(heraldtest.EmptyPostgres(t))
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 4 {
		wg.Go(func() {
			done, err := Migrate(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			applied += len(done)
			mu.Unlock()
		})
	}
	wg.Wait()
	all, err := Migrations(t.Context(), url)
	if err != nil || len(all) == 0 || applied != len(all) {
		t.Fatalf("%d applied of %d, %v", applied, len(all), err)
	}
	for _, m := range all {
		if m.AppliedAt.IsZero() || m.Name == "" {
			t.Errorf("%+v", m)
		}
	}
	if done, err := Migrate(t.Context(), url); err != nil || len(done) != 0 {
		t.Error(done, err)
	}
}

// TestUnreleasedSchema: a schema of a Herald before the first release is refused and stays as it is. A table that such a
// Herald created later, in a database of this version, changes nothing.
func TestUnreleasedSchema(t *testing.T) {
	t.Parallel()
	s := openStore(t, heraldtest.EmptyPostgres(t))
	exec(t, s, `CREATE SCHEMA herald`)
	exec(t, s, `CREATE TABLE herald.goose_db_version (version_id bigint)`)
	url := s.pool.Config().ConnString()
	if done, err := Migrate(t.Context(), secret.New(url)); !errors.Is(err, errUnreleased) || len(done) != 0 {
		t.Error(done, err)
	}
	if _, err := Migrations(t.Context(), secret.New(url)); !errors.Is(err, errUnreleased) {
		t.Error(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM pg_class WHERE relnamespace = 'herald'::regnamespace`); n != 1 {
		t.Errorf("the schema has %d relations, want 1", n)
	}

	s = newStore(t)
	exec(t, s, `CREATE TABLE herald.goose_db_version (version_id bigint)`)
	if done, err := Migrate(t.Context(), secret.New(s.pool.Config().ConnString())); err != nil || len(done) != 0 {
		t.Error(done, err)
	}
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if n, err := s.EnsurePartitions(t.Context(), 4); n != 0 || err != nil {
		t.Errorf("the migration left %d to make, %v", n, err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 4 {
		wg.Go(func() {
			n, err := s.EnsurePartitions(t.Context(), 8)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			made += n
			mu.Unlock()
		})
	}
	wg.Wait()
	heraldtest.Equal(t, "migrations made", made, 4)
	record(t, s, claim(t, s, acceptOne(t, s, feedback(1, 1))), delivered)
	where := value[string](t, s, `SELECT relname::text FROM herald.attempts a JOIN pg_class c ON c.oid = a.tableoid`)
	if want := "attempts_" + value[string](t, s, `SELECT to_char(date_trunc('week', now() AT TIME ZONE 'UTC'), 'YYYYMMDD')`); where != want {
		t.Errorf("the attempt is in %s, not in %s", where, want)
	}
	// Rows of a week without a partition go to the default partition and stay there.
	exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES (gen_random_uuid(), 1, now() + interval '100 weeks', 'claim')`)
	if n := value[int](t, s, `SELECT herald.ensure_attempt_partitions(now() + interval '100 weeks', 1)`); n != 1 {
		t.Errorf("made %d", n)
	}
	indexes := value[int](t, s, `SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'herald.attempts_pkey'::regclass`)
	if tables := value[int](t, s, `SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'herald.attempts'::regclass`); indexes != tables || tables != 11 {
		t.Errorf("%d partitions, %d of them with the key", tables, indexes)
	}
}

// TestNoPassword: no error contains the password, with any fault of the URL or the network.
func TestNoPassword(t *testing.T) {
	t.Parallel()
	const password = "s3cr3tPassw0rd"
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
		s, err := Open(Config{URL: secret.New(url), ConnectTimeout: time.Second})
		if err != nil {
			look("Open", err)
		} else {
			look("Ping", s.Ping(ctx))
			_, err = s.Claim(ctx, task0, 1, lease)
			look("Claim", err)
			_, err = s.Record(ctx, &Claim{}, delivered)
			look("Record", err)
			_, _, err = s.Accept(ctx, feedbacks(1, 1, 1))
			look("Accept", err)
			_, err = s.Lead(ctx, nil)
			look("Lead", err)
			_, err = s.Adopt(ctx, &Claim{}, SpooledOutcome{Outcome: delivered})
			look("Adopt", err)
			_, _, _, err = s.Replay(ctx, ids1(task0), false)
			look("Replay", err)
			_, _, err = s.Clock(ctx)
			look("Clock", err)
			_, _, err = s.EnableAgent(ctx, agentNamed("1"), true)
			look("EnableAgent", err)
			_, err = s.BeginAudit(ctx, Audit{})
			look("BeginAudit", err)
			_, err = s.DropPartitions(ctx, time.Hour)
			look("DropPartitions", err)
			s.Close()
		}
		_, err = Migrate(ctx, secret.New(url))
		look("Migrate", err)
		_, err = Migrations(ctx, secret.New(url))
		look("Migrations", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {URL: secret.New("postgres://h/d"), MaxConns: 1}, {URL: secret.New("postgres://h/d"), MaxConns: -1}} {
		if s, err := Open(cfg); err == nil {
			s.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}
