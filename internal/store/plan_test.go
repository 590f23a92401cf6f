package store

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// groupStatement is a statement of the delivery path. Its plan must not depend on the statistics: it must read each
// table by one of keyIndexes, with the whole key, or by one of its own indexes.
type groupStatement struct {
	sql     string
	args    string // as SQL
	indexes []usedIndex
}

// usedIndex is an index by its name (a regular expression for the whole name) and the required index condition.
type usedIndex struct{ name, condition string }

var keyIndexes = []usedIndex{{`work_pkey`, `id = `}, {`work_agent`, `agent_id = `}, {`work_order`, `order_hash = `}, {`work_behind`, `order_hash = `}, {`history_pkey`, `id = `},
	{`history_key`, ` = `}, {`agents_pkey`, `agent_id = `}, {`attempts_([0-9]+|default)_pkey`, `delivery_id = `},
	{`hints_pkey`, `delivery_id = `}, {`chain_events_pkey`, `delivery_id = `}, {`verified_chains_pkey`, ``}, {`agents_unordered`, ``}, {`hints_review`, ``},
	{`chain_cursors_pkey`, ``}} // the last four have few rows

// byPlace is for statements about all agents: they read the deliveries of some places, not those that wait.
var byPlace = usedIndex{`work_agent`, `place = `}

var groupStatements = map[string]groupStatement{
	"lock_agents":   {sql: statements.Text("lock_agents"), args: agentArguments},
	"make_agents":   {sql: statements.Text("make_agents"), args: agentArguments},
	"backlogs":      {sql: statements.Text("dispatch"), args: agentArguments + `, NULL, NULL, 8, 2`},
	"give_back":     {sql: statements.Text("give_back"), args: deliveryArguments + `, ARRAY[1, 1], ARRAY[true, true]`},
	"claim":         {sql: statements.Text("claim"), args: groupArguments("claim")},
	"claim_members": {sql: statements.Text("claim_members"), args: groupArguments("claim_members")},
	"record":        {sql: statements.Text("record"), args: groupArguments("record")},
	"complete":      {statements.Text("complete"), groupArguments("complete"), []usedIndex{{`attempts_default_started`, `started_at = `}}},
	"dispatch":      {sql: statements.Text("dispatch"), args: groupArguments("dispatch")},
	"accept":        {sql: statements.Text("accept"), args: groupArguments("accept")},
	"known":         {sql: statements.Text("known") + " WHERE " + hasKey, args: repeatSQL(`'%d'`)},
	"known by id":   {sql: statements.Text("known") + " WHERE " + hasID, args: oneDelivery},
	"bind":          {sql: statements.Text("bind"), args: groupArguments("bind")},
	"read_event":    {sql: statements.Text("read_event"), args: groupArguments("read_event")},
	"reopen":        {sql: statements.Text("reopen"), args: groupArguments("reopen")},
	"hint":          {sql: statements.Text("hint"), args: groupArguments("hint")},
	"revive":        {sql: statements.Text("revive_revocations"), args: deliveryArguments},
	"yield":         {sql: statements.Text("yield"), args: `md5('1')::uuid, 1, '1 s', 8, 2`},
	"adopt":         {statements.Text("adopt"), `md5('1')::uuid, 1, 1, now()`, []usedIndex{{`attempts_default_started`, `started_at = `}}},
	"wake":          {sql: statements.Text("wake"), args: oneDelivery + `, '{behind_earlier}'`},
	"withdraw":      {sql: statements.Text("withdraw"), args: oneDelivery},
	"lock_agent":    {sql: statements.Text("lock_agent"), args: oneAgent},
	"lock_delivery": {sql: statements.Text("lock_delivery"), args: oneDelivery},
	"lock_agent_of": {sql: statements.Text("lock_agent_of"), args: oneDelivery},
	"redispatch":    {sql: statements.Text("redispatch"), args: `md5('1')::uuid, 1`},
	"end":           {sql: statements.Text("end"), args: groupArguments("end")},
	"replay":        {sql: statements.Text("replay"), args: groupArguments("replay")},
	"ignore_order":  {sql: statements.Text("ignore_order"), args: deliveryArguments},
	"switched_off":  {statements.Text("switched_off"), `'off', 500`, []usedIndex{{`work_behind`, ``}}},
	"expire_leases": {sql: statements.Text("expire_leases"), args: deliveryArguments + `, 11`},
	"release_held":  {sql: statements.Text("release_held"), args: oneAgent + `, 500, ARRAY['auth_required', 'agent_disabled'], -1, md5('1')::uuid, 1`},
	"due":           {statements.Text("due"), `500`, []usedIndex{{`work_due`, `next_attempt_at <= `}}},
	"backlog":       {statements.Text("backlog"), `8, 500, ` + oneAgent + `, 10000`, []usedIndex{byPlace}},
	"lost_leases":   {statements.Text("lost_leases"), `500, ` + oneAgent + `, ` + oneAgent, []usedIndex{byPlace}},
	"lease_part":    {statements.Text("lease_part"), oneAgent + `, 199999`, []usedIndex{byPlace}},
	"lost_before":   {statements.Text("lost_before"), `now(), 500`, []usedIndex{byPlace}},
	"overdue":       {statements.Text("overdue"), `'15 s', md5('1')::uuid, 500`, []usedIndex{byPlace}},
	"release":       {statements.Text("release"), `'{1}', true, 500`, []usedIndex{{`work_held`, `reason = `}}},
	"forget":        {statements.Text("forget_transfers"), `8453, '{0xaa}', '', 1000, 1001`, []usedIndex{{`agent_transfers_block`, `block_number >= `}}},
}

const oneAgent, oneDelivery = `8453, '0xaa', '1'`, `md5('1')::uuid`

// Arguments of statements for groups of two.
var (
	deliveryArguments = repeatSQL(`md5(%d::text)::uuid`)
	agentArguments    = repeatSQL(`8453`) + `, ` + repeatSQL(`'0xaa'`) + `, ` + repeatSQL(`'%d'`)
)

// groupArguments returns the arguments of a statement with @names for a group of two, as SQL.
func groupArguments(statement string) string {
	elements := map[string]string{"ids": `md5(%d::text)::uuid`, "ns": `1`, "claim_nos": `1`, "started_ats": `now()`, "numbers": `1`,
		"statuses": `'delivered'`, "delays": `interval '1 s'`, "tasks": `false`, "called": `true`, "stages": `'call'`, "agent_oks": `true`,
		"chains": `8453`, "registries": `'0xaa'`, "agents": `'%d'`, "chain_ids": `8453`, "agent_ids": `'%d'`, "keys": `'%d'`, "kinds": `'NewFeedback'`,
		"order_keys": `'%d'`, "order_seqs": `'%d'`, "bulks": `false`}
	single := map[string]string{"max_dispatched": `8`, "max_responses": `2`, "alone": `false`, "lease": `'2 min'`, "recent": `'1 hour'`, "tolerance": `'1 s'`,
		"chain_id": `8453`, "registry": `'0xaa'`, "agent_id": `'1'`, "leader": `md5('1')::uuid`, "limit": `2`, "bound": `true`, "strict": `true`,
		"delivery_id": `md5('1')::uuid`, "claim_no": `1`, "job": `'{}'`, "sealed_headers": `NULL`, "source": `''`, "trust": `0`, "corrected": `NULL`,
		"order_key": `'1'`, "order_seq": `'1'`, "rank": `1`, "refuted": `false`, "review": `true`, "key": `'1'`, "read": `true`,
		"contract": `'0xbb'`, "block": `1000`, "status": `'cancelled'`, "reason": `'reorg'`, "running": `true`, "delivered": `true`,
		"filtered": `true`, "cancelled": `true`}
	switch statement {
	case "bind":
		single["hints"] = `0`
	case "accept":
		delete(single, "sealed_headers")
	}
	var args []string
	for _, name := range statements.Named(statement).Names {
		switch element, ok := elements[name]; {
		case single[name] != "":
			args = append(args, single[name])
		case ok:
			args = append(args, repeatSQL(element))
		default:
			args = append(args, `'{NULL, NULL}'`)
		}
	}
	return strings.Join(args, ", ")
}

// repeatSQL returns an array of two elements, each made from its number.
func repeatSQL(element string) string {
	return "ARRAY[" + strings.ReplaceAll(element, "%d", "1") + ", " + strings.ReplaceAll(element, "%d", "2") + "]"
}

// States of the tables on which the statistics may be based, whether correct or outdated. Nine of ten deliveries are
// history.
const (
	fillHistory = `
		INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 500) n;
		INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, dispatch, attempts, finished_at)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1 + n % 500, n::text, n,
			CASE WHEN n % 10 > 0 THEN 'delivered' ELSE 'queued' END, 1, 1, CASE WHEN n % 10 > 0 THEN now() END
		  FROM generate_series(1, 2000) n;
		INSERT INTO herald.attempts (delivery_id, number, started_at, stage, outcome)
		SELECT md5(n::text)::uuid, 1, now() - interval '1 s', 'call', 'delivered' FROM generate_series(1, 2000) n;`
	fillBurst = `
		INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, dispatch, attempts)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1 + n % 500, n::text, n, 1, 1 FROM generate_series(2001, 6000) n;`
	fillWork = `
		INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, order_hash, handed_at, dispatch, attempts,
			status, reason, next_attempt_at)
		SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, order_seq, CASE WHEN seq / 10 % 2 = 0 THEN now() END, 1, 1,
			CASE WHEN seq / 10 % 5 = 0 THEN 'waiting' ELSE 'queued' END, CASE WHEN seq / 10 % 5 = 0 THEN 'behind_earlier' END, CASE WHEN seq / 10 % 5 = 0 THEN now() END
		  FROM herald.history WHERE finished_at IS NULL;`
	fillTables = fillHistory + fillWork
	fillSmall  = `
		INSERT INTO herald.agents (chain_id, identity_registry, agent_id) VALUES (8453, '0xaa', 1);
		INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, handed_at, dispatch)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1, n::text, n, now(), 1 FROM generate_series(1, 20) n;
		INSERT INTO herald.attempts (delivery_id, number, started_at, stage) SELECT md5(n::text)::uuid, 1, now(), 'claim' FROM generate_series(1, 20) n;`
	analyze = `ANALYZE herald.history, herald.work, herald.agents, herald.attempts;`
	// count sets a table's size in the statistics; the planner scales it by the actual number of pages.
	count = `UPDATE pg_class SET reltuples = %s, relpages = %s
		WHERE relnamespace = 'herald'::regnamespace AND relkind IN ('r', 'i') AND relname ~ '^(history|work|agents|attempts)';`
)

// TestGroupPlans: with any statistics, each statement of the delivery path finds its rows by their keys. The plans are
// generic, as all plans of the store are, so that the size of a group changes nothing.
func TestGroupPlans(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{
		"no statistics, no rows":         ``,
		"no statistics, many rows":       fillTables,
		"of empty tables":                `VACUUM ANALYZE herald.history, herald.work, herald.agents, herald.attempts`,
		"of empty tables, many rows":     analyze + fmt.Sprintf(count, "0", "0") + fillTables,
		"while nothing was open":         fillHistory + analyze + fillBurst + fillWork,
		"of small tables":                fillSmall + analyze,
		"of small tables, many rows":     fillSmall + analyze + `DELETE FROM herald.agents; DELETE FROM herald.work; DELETE FROM herald.history;` + fillTables,
		"of large tables":                fillTables + analyze,
		"of large tables, one row":       fillTables + analyze + `DELETE FROM herald.work WHERE key <> '20'`,
		"of a billion rows":              fillTables + analyze + fmt.Sprintf(count, "1e9", "1e3"),
		"of a billion rows in no tables": fmt.Sprintf(count, "1e9", "1"),
		"of one row in many pages":       fillTables + analyze + fmt.Sprintf(count, "1", "1e7"),
		"one agent has everything":       fillTables + `UPDATE herald.work SET agent_id = 1, status = 'queued', handed_at = now();` + analyze,
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
				for _, fault := range checkPlan(t, s, st) {
					t.Errorf("%s: %s", name, fault)
				}
			}
		})
	}
}

func execScript(t testing.TB, s *Store, sql string) []*pgconn.Result {
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

// checkPlan returns the faults of a statement's plan on a connection of the pool.
func checkPlan(t *testing.T, s *Store, st groupStatement) (faults []string) {
	t.Helper()
	answers := execScript(t, s, fmt.Sprintf(`PREPARE planned AS %s; EXPLAIN (FORMAT JSON) EXECUTE planned%s; DEALLOCATE planned`,
		st.sql, strings.TrimSuffix("("+st.args+")", "()")))
	plan := answers[1].Rows[0][0]
	var explained []struct{ Plan planNode }
	heraldtest.Must(t, json.Unmarshal(plan, &explained))
	faults = explained[0].Plan.findFaults(slices.Concat(keyIndexes, st.indexes))
	if len(faults) > 0 {
		faults = append(faults, string(plan))
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

// TestManyOfAClientCostNothing: a client has many deliveries that are held or in the backlog. The statements for its
// next one read none of them.
func TestManyOfAClientCostNothing(t *testing.T) {
	t.Parallel()
	disabled := ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Stage: "check", Free: true}
	byFile := disabled
	byFile.Elsewhere = true
	for name, tt := range map[string]struct {
		status, reason string // of the many
		outcome        ledger.Outcome
	}{
		"held for another reason":         {"held", "auth_required", byFile},
		"held, and the agent is disabled": {"held", "agent_disabled", disabled},
		"unchecked, in the backlog":       {"queued", "", delivered},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openAdjusted(t, heraldtest.Postgres(t, postgres.Migrate), 2, func(c *pgxpool.Config) { c.MaxConns = 1 }) // it counts its reads
			s.StrictOrder = true
			exec(t, s, `INSERT INTO herald.verified_chains (chain_id) VALUES (8453)`)
			first := acceptOne(t, s, feedback(1, 1))
			exec(t, s, `UPDATE herald.agents SET enabled = $1`, tt.outcome.Reason == "")
			exec(t, s, `INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, verified)
				SELECT gen_random_uuid(), key || n, kind, chain_id, identity_registry, agent_id, order_key, n, true
				  FROM herald.history, generate_series(2, 5000) n WHERE id = $1`, first.ID)
			exec(t, s, `INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, order_hash, verified, status, reason)
				SELECT h.id, h.seq, h.key, h.kind, h.chain_id, h.identity_registry, h.agent_id, h.order_key, h.order_seq, w.order_hash, true, $1, nullif($2, '')
				  FROM herald.history h, herald.work w WHERE h.order_seq > 1`, tt.status, tt.reason)
			exec(t, s, `ANALYZE herald.work`)
			n := countRead(t, s, func() {
				accept(t, s, ledger.Intake{Job: feedback(1, 6000)})
				record(t, s, claim(t, s, first), tt.outcome)
			})
			if n > 500 {
				t.Errorf("%d rows were read", n)
			}
		})
	}
}

// TestReleaseReadsEachOnce: the batches in which an agent's held deliveries are released do not read those of later
// ones.
func TestReleaseReadsEachOnce(t *testing.T) {
	t.Parallel()
	s := openAdjusted(t, heraldtest.Postgres(t, postgres.Migrate), 2, func(c *pgxpool.Config) { c.MaxConns = 1 }) // it counts its reads
	const many = 10 * maxMove
	exec(t, s, fillHistory)
	exec(t, s, `INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, reason)
		SELECT gen_random_uuid(), n, n::text, 'NewFeedback', 8453, '0xaa', 1, n::text, n, 'held', 'auth_required' FROM generate_series(1, $1::int) n`, many)
	exec(t, s, `ANALYZE herald.work`)
	read := countRead(t, s, func() {
		released, _, err := s.ReleaseHeld(t.Context(), erc8004.Agent{ChainID: 8453, Registry: "0xaa", ID: "1"}, "auth_required")
		if released != many || err != nil {
			t.Errorf("%d released, %v", released, err)
		}
	})
	if read > 4*many {
		t.Errorf("%d rows were read", read)
	}
}

// countRead returns how many rows of herald.work do reads by indexes. The store has one connection.
func countRead(t *testing.T, s *Store, do func()) int {
	t.Helper()
	read := func() int {
		exec(t, s, `SELECT pg_stat_force_next_flush()`)
		return value[int](t, s, `SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'work' AND schemaname = 'herald'`)
	}
	before := read()
	do()
	return read() - before
}
