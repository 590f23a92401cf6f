package store

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// groupStatement is a statement that processes a group. Its plan must not depend on the statistics: it must read each
// table by the indexes named here, with the whole key.
type groupStatement struct {
	sql     string
	args    func(n int) string // for a group of n, as SQL
	indexes []usedIndex
}

// usedIndex is an index by its name (a regular expression for the whole name) and the required index condition.
type usedIndex struct{ name, condition string }

var groupStatements = map[string]groupStatement{
	"claim_group": {statement("claim_group"),
		func(n int) string { return repeatSQL(n, `md5(%d::text)::uuid`) + `::uuid[], '2 min', '1 hour'` },
		[]usedIndex{{`deliveries_pkey|deliveries_task`, `id = ANY`}, {`agents_pkey`, `agent_id = c.agent_id`}, {`deliveries_order`, `hashtextextended(c.order_key`}}},
	"lock_agents": {statement("lock_agents"),
		func(n int) string {
			return repeatSQL(n, `8453`) + `, ` + repeatSQL(n, `'0xaa'`) + `, ` + repeatSQL(n, `'%d'`)
		},
		[]usedIndex{{`agents_pkey`, `agent_id = `}}},
	"dispatch_agents": {statement("dispatch_agents"),
		func(n int) string {
			return repeatSQL(n, `8453`) + `, ` + repeatSQL(n, `'0xaa'`) + `, ` + repeatSQL(n, `'%d'`) + `, 8, true`
		},
		[]usedIndex{{`deliveries_pkey`, `id = ANY`}, {`deliveries_next|deliveries_out`, `agent_id = `}, {`agents_pkey`, `agent_id = `}}},
	"claim_followers": {statement("claim_followers"),
		func(n int) string {
			return `8453, '0xaa', 1, md5('1')::uuid, ` + fmt.Sprint(min(n, MaxFollowers)) + `, '2 min', '1 hour', true`
		},
		[]usedIndex{{`deliveries_next|deliveries_out`, `agent_id = `}, {`deliveries_order`, `hashtextextended(`}, {`deliveries_pkey`, `id = `},
			{`agents_pkey`, `agent_id = c.agent_id`}, {`attempts_([0-9]+|default)_pkey`, `delivery_id = c.id`}}},
	"give_back": {statement("give_back"),
		func(n int) string {
			return repeatSQL(n, `md5(%d::text)::uuid`) + `, ` + repeatSQL(n, `1`) + `, ` + repeatSQL(n, `true`) + `, now()`
		},
		[]usedIndex{{`deliveries_pkey`, `id = `}, {`attempts_([0-9]+|default)_pkey`, `delivery_id = `}}},
	"record_group": {inWeek(statement("record_group"), thisWeek()),
		func(n int) string { return groupArguments("record_group", n) },
		[]usedIndex{{`deliveries_pkey`, `id = w.id`}, {`attempts_[0-9]+_pkey`, `delivery_id = r_1.id`}, {`agents_pkey`, `agent_id = `},
			{`deliveries_behind`, `r.order_key`}, {`deliveries_pkey`, `id = ANY`}}},
	"dispatch_group": {statement("dispatch_group"),
		func(n int) string { return groupArguments("dispatch_group", n) },
		[]usedIndex{{`deliveries_pkey`, `id = w.id`}, {`deliveries_pkey`, `id = ANY`}, {`deliveries_next|deliveries_out`, `agent_id = `}, {`agents_pkey`, `agent_id = `}}},
}

// thisWeek returns the partition for attempts that begin now.
func thisWeek() string {
	now := time.Now().UTC()
	return "herald.attempts_" + now.AddDate(0, 0, -(int(now.Weekday())+6)%7).Format("20060102")
}

// groupArguments returns the arguments of a statement with @names for a group of n, as SQL.
func groupArguments(statement string, n int) string {
	elements := map[string]string{"ids": `md5(%d::text)::uuid`, "claim_nos": `1`, "started_ats": `now()`, "numbers": `1`,
		"statuses": `'delivered'`, "delays": `interval '1 s'`, "tasks": `false`, "called": `true`, "stages": `'call'`, "agent_oks": `true`}
	var args []string
	for _, name := range namedStatement(statement).names {
		switch element, ok := elements[name]; {
		case name == "max_dispatched":
			args = append(args, `8`)
		case name == "strict":
			args = append(args, `true`)
		case ok:
			args = append(args, repeatSQL(n, element))
		default:
			args = append(args, `'{`+strings.TrimSuffix(strings.Repeat("NULL,", n), ",")+`}'`)
		}
	}
	return strings.Join(args, ", ")
}

// repeatSQL returns an array of n elements, each made from its number.
func repeatSQL(n int, element string) string {
	elements := make([]string, n)
	for i := range elements {
		elements[i] = strings.ReplaceAll(element, "%d", fmt.Sprint(i+1))
	}
	return "ARRAY[" + strings.Join(elements, ", ") + "]"
}

// States of the tables on which the statistics may be based, whether correct or outdated. Nine of ten deliveries are
// history.
const (
	fillTables = `
		INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 500) n;
		INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, handed_at, dispatch,
			attempts, finished_at)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1 + n % 500, n::text, n,
			CASE WHEN n % 10 > 0 THEN 'delivered' ELSE 'queued' END, CASE WHEN n % 20 = 0 THEN now() END, 1, 1, CASE WHEN n % 10 > 0 THEN now() END
		  FROM generate_series(1, 5000) n;
		INSERT INTO herald.attempts (delivery_id, number, started_at, stage, outcome)
		SELECT md5(n::text)::uuid, 1, now() - interval '1 s', 'call', 'delivered' FROM generate_series(1, 5000) n;`
	fillSmall = `
		INSERT INTO herald.agents (chain_id, identity_registry, agent_id) VALUES (8453, '0xaa', 1);
		INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, handed_at, dispatch)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1, n::text, n, now(), 1 FROM generate_series(1, 20) n;
		INSERT INTO herald.attempts (delivery_id, number, started_at, stage) SELECT md5(n::text)::uuid, 1, now(), 'claim' FROM generate_series(1, 20) n;`
	analyze = `ANALYZE herald.deliveries, herald.agents, herald.attempts;`
	// count sets a table's size in the statistics; the planner scales it by the actual number of pages.
	count = `UPDATE pg_class SET reltuples = %s, relpages = %s
		WHERE relnamespace = 'herald'::regnamespace AND relkind IN ('r', 'i') AND relname ~ '^(deliveries|agents|attempts)';`
)

// TestGroupPlans: with any statistics, each statement for a group finds its rows by their keys.
func TestGroupPlans(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{
		"no statistics, no rows":         ``,
		"no statistics, many rows":       fillTables,
		"of empty tables":                `VACUUM ANALYZE herald.deliveries, herald.agents, herald.attempts`,
		"of empty tables, many rows":     analyze + fmt.Sprintf(count, "0", "0") + fillTables,
		"of small tables":                fillSmall + analyze,
		"of small tables, many rows":     fillSmall + analyze + `DELETE FROM herald.agents; DELETE FROM herald.deliveries;` + fillTables,
		"of large tables":                fillTables + analyze,
		"of large tables, one row":       fillTables + analyze + `DELETE FROM herald.deliveries WHERE key <> '20'`,
		"of a billion rows":              fillTables + analyze + fmt.Sprintf(count, "1e9", "1e3"),
		"of a billion rows in no tables": fmt.Sprintf(count, "1e9", "1"),
		"of one row in many pages":       fillTables + analyze + fmt.Sprintf(count, "1", "1e7"),
		"one agent has everything":       fillTables + `UPDATE herald.deliveries SET agent_id = 1, status = 'queued', handed_at = now(), finished_at = NULL;` + analyze,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			exec(t, s, `DO $$ DECLARE r regclass; BEGIN
				FOR r IN SELECT oid FROM pg_class WHERE relnamespace = 'herald'::regnamespace AND relkind = 'r' LOOP
					EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', r);
				END LOOP; END $$`) // or it would write other statistics
			execScript(t, s, prepare)
			for name, st := range groupStatements {
				for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
					for _, n := range []int{2, maxGroup} {
						for _, fault := range checkPlan(t, s, mode, st, n) {
							t.Errorf("%s of %d rows with %s: %s", name, n, mode, fault)
						}
					}
				}
			}
		})
	}
}

func execScript(t *testing.T, s *Store, sql string) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// checkPlan returns the faults of a statement's plan on a connection of the pool.
func checkPlan(t *testing.T, s *Store, mode string, st groupStatement, n int) (faults []string) {
	t.Helper()
	var plan string
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		script := fmt.Sprintf(`SET LOCAL plan_cache_mode = %s; PREPARE planned AS %s; EXPLAIN (FORMAT JSON) EXECUTE planned(%s); DEALLOCATE planned`,
			mode, st.sql, st.args(n))
		answers, err := tx.Conn().PgConn().Exec(t.Context(), script).ReadAll()
		if err == nil {
			plan = string(answers[2].Rows[0][0])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var explained []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(plan), &explained); err != nil {
		t.Fatal(err)
	}
	faults = explained[0].Plan.findFaults(st.indexes)
	if len(faults) > 0 {
		faults = append(faults, plan)
	}
	return faults
}

// planNode is a node of a plan in EXPLAIN's JSON format.
type planNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	Condition string     `json:"Index Cond"`
	Plans     []planNode `json:"Plans"`
}

func (p planNode) findFaults(indexes []usedIndex) (faults []string) {
	switch p.Type {
	case "ModifyTable", "Bitmap Heap Scan", "Tid Scan": // these read rows that an index scan found
	default:
		if p.Relation == "" && p.Index == "" || p.isOneOf(indexes) {
			break
		}
		faults = append(faults, fmt.Sprintf("%s on %s by index %q, condition %q", p.Type, p.Relation, p.Index, p.Condition))
	}
	for _, below := range p.Plans {
		faults = append(faults, below.findFaults(indexes)...)
	}
	return faults
}

func (p planNode) isOneOf(indexes []usedIndex) bool {
	for _, used := range indexes {
		if regexp.MustCompile(`^(`+used.name+`)$`).MatchString(p.Index) && strings.Contains(p.Condition, used.condition) {
			return true
		}
	}
	return false
}
