package store

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
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
	record(t, s, claim(t, s, tasks[1]), ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error", Error: "no", Called: true, Response: []byte(`{"isError": true}`)})
	claim(t, s, tasks[2])
	exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s', attempts = 1 WHERE id = $1`, tasks[2].ID)
	if _, _, err := s.ExpireLeases(t.Context(), 10, 1); err != nil {
		t.Fatal(err)
	}
	claim(t, s, tasks[3]) // running, so it has no row yet
	rows, err := s.Conns.Query(t.Context(), `SELECT concat_ws('|', (SELECT order_seq FROM herald.deliveries WHERE id::text = job_id), action_type, status,
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

func TestPartitions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if n, err := retention.New(s.Pool).EnsurePartitions(t.Context(), 4); n != 0 || err != nil {
		t.Errorf("the migration left %d to make, %v", n, err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 4 {
		wg.Go(func() {
			n, err := retention.New(s.Pool).EnsurePartitions(t.Context(), 8)
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
