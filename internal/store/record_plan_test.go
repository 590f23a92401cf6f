package store

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestRecordGroupPlans: whatever the statistics say, a group reads and writes each of its rows by the index that is
// meant for it.
func TestRecordGroupPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	week := value[string](t, s, `SELECT 'herald.attempts_' || to_char(date_trunc('week', now() AT TIME ZONE 'UTC'), 'YYYYMMDD')`)
	bare := strings.TrimPrefix(week, "herald.")
	plans := []struct {
		name, sql string
		args      func(n int) string
		allowed   []string
	}{
		{"lock_agents", statement("lock_agents"), func(n int) string {
			return array(n, "8453") + array(n, "0xaa") + array(n, "%d") + ""
		}, []string{"Index Scan using agents_pkey on agents"}},
		{"record_group", inWeek(statement("record_group"), week), func(n int) string {
			return groupArguments("record_group", n)
		}, []string{"Index Scan using deliveries_pkey on deliveries", "Tid Scan on deliveries",
			"Index Scan using " + bare + "_pkey on " + bare, "Tid Scan on " + bare,
			"Index Scan using agents_pkey on agents", "Tid Scan on agents"}},
		{"dispatch_group", statement("dispatch_group"), func(n int) string {
			return groupArguments("dispatch_group", n)
		}, []string{"Index Scan using deliveries_pkey on deliveries", "Index Scan using deliveries_line on deliveries",
			"Index Only Scan using deliveries_line on deliveries", "Index Scan using deliveries_out on deliveries",
			"Bitmap Heap Scan on deliveries", "Bitmap Index Scan on deliveries_pkey", "Index Only Scan using deliveries_out on deliveries"}},
	}
	check := func(statistics string) {
		t.Helper()
		for _, p := range plans {
			for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
				for _, n := range []int{1, 64} {
					plan := explainOnly(t, s, mode, p.sql, strings.TrimSuffix(p.args(n), ","))
					if wrong := wrongScan(plan, p.allowed); wrong != "" {
						t.Errorf("statistics of %s, %s of %d, %s: %s\n%s", statistics, p.name, n, mode, wrong, plan)
					}
				}
			}
		}
	}
	fill := func(from, to int) {
		t.Helper()
		exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series($1::int, $2::int) n`, from, to)
		exec(t, s, `INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, claim_no, lease_until, handed_at, finished_at)
			SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', n % 1000, n::text, n, st, 1, now(), CASE WHEN n % 30 > 10 THEN now() END,
			       CASE WHEN st = 'delivered' THEN now() END
			  FROM (SELECT n, CASE n % 30 WHEN 0 THEN 'running' WHEN 1 THEN 'queued' WHEN 11 THEN 'queued' ELSE 'delivered' END AS st
			          FROM generate_series($1::int, $2::int) n) x`, from, to)
		exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) SELECT md5(n::text)::uuid, 1, now(), 'claim' FROM generate_series($1::int, $2::int) n`, from, to)
	}
	analyze := func() { exec(t, s, `ANALYZE herald.deliveries, herald.agents, herald.attempts`) }

	check("nothing, and empty tables")
	analyze()
	check("empty tables")
	fill(1, 50)
	check("empty tables, with some rows")
	analyze()
	check("small tables")
	fill(51, 30000)
	check("small tables, with many rows")
	analyze()
	check("large tables")
}

// groupArguments are those of a statement about a group of n.
func groupArguments(statement string, n int) (args string) {
	of := map[string]string{"ids": "00000000-0000-0000-0000-%012d", "claim_nos": "1", "started_ats": "2026-11-22", "numbers": "1",
		"statuses": "delivered", "delays": "1 s", "tasks": "f", "called": "t", "stages": "call", "agent_oks": "t"}
	for _, name := range namedStatement(statement).names {
		switch {
		case name == "max_dispatched":
			args += "8,"
		case of[name] == "":
			args += array(n, "NULL")
		default:
			args += array(n, of[name])
		}
	}
	return args
}

// array is a literal of n elements, and a comma.
func array(n int, of string) string {
	elements := make([]string, n)
	for i := range elements {
		if elements[i] = of; strings.Contains(of, "%") {
			elements[i] = fmt.Sprintf(of, i+1)
		}
	}
	return "'{" + strings.Join(elements, ",") + "}',"
}

// explainOnly is the plan of a statement.
func explainOnly(t *testing.T, s *Store, mode, sql, args string) string {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	res, err := conn.Conn().PgConn().Exec(t.Context(), fmt.Sprintf(`BEGIN; SET LOCAL plan_cache_mode = %s; PREPARE x AS %s;
		EXPLAIN EXECUTE x(%s); DEALLOCATE x; ROLLBACK`, mode, sql, args)).ReadAll()
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	var b strings.Builder
	for _, row := range res[3].Rows {
		b.Write(row[0])
		b.WriteByte('\n')
	}
	return b.String()
}

var (
	tableScan = regexp.MustCompile(`(?:Index|Index Only|Tid|Seq|Bitmap Heap|Bitmap Index) Scan\b.* on (?:deliveries|agents|attempts|candidates)\w*`)
	scanCond  = regexp.MustCompile(`^\s*(?:Index Cond|TID Cond|Recheck Cond): `)
)

// wrongScan is the first line of a plan that reads a table otherwise than allowed, or without a condition.
func wrongScan(plan string, allowed []string) string {
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		scan := tableScan.FindString(line)
		if scan == "" {
			continue
		}
		ok := false
		for _, a := range allowed {
			ok = ok || scan == a
		}
		if !ok || !scanCond.MatchString(lines[i+1]) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
