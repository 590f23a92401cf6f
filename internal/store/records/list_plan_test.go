package records_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementLog records the statements that a store runs, except those that begin or end a transaction.
type statementLog struct {
	mu    sync.Mutex
	asked []pgx.TraceQueryStartData
}

func (l *statementLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.HasPrefix(q.SQL, "begin") && q.SQL != "commit" {
		l.asked = append(l.asked, q)
	}
	return ctx
}

func (l *statementLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// newLoggedStore is newStore with a log of the statements.
func newLoggedStore(t *testing.T) (storetest.Postgres, *statementLog) {
	t.Helper()
	asked := &statementLog{}
	return newStoreWith(t, func(pc *pgxpool.Config) { pc.ConnConfig.Tracer = asked }), asked
}

// expectReads checks that none of the statements since the last call reads more rows than most, and that their plans
// lack the words.
func (l *statementLog) expectReads(t *testing.T, s storetest.Postgres, what string, most float64, lacks ...string) {
	t.Helper()
	for _, q := range l.take() {
		read, plan := explainRead(t, s, q)
		if read > most {
			t.Errorf("%s reads %.0f rows: %s\n%s", what, read, q.SQL, plan)
		}
		heraldtest.Lacks(t, "the plan of "+what, plan, lacks...)
	}
}

// take returns the statements since the last call.
func (l *statementLog) take() []pgx.TraceQueryStartData {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.asked
	l.asked = nil
	return asked
}

// fillLists inserts 20,000 deliveries of 40 agents and one client: 3,000 dead, 400 waiting, 400 held, 200 queued, and
// history.
const fillLists = `
	INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 40) n;
	INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, reason, error, job, created_at, finished_at)
	SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1 + n % 40, 'eip155:8453:0xbb/1/0xc1', n,
	       CASE WHEN s IN ('delivered', 'dead') THEN s ELSE 'queued' END, CASE s WHEN 'dead' THEN 'server_error' END, s,
	       jsonb_build_object('transactionHash', md5(n::text)), now() - (20000 - n) * interval '1 minute',
	       CASE WHEN s IN ('delivered', 'dead') THEN now() - (20000 - n) * interval '1 minute' END
	  FROM (SELECT n, CASE WHEN n % 100 < 15 THEN 'dead' WHEN n % 100 < 17 THEN 'waiting' WHEN n % 100 < 19 THEN 'held' WHEN n % 100 < 20 THEN 'queued'
	               ELSE 'delivered' END AS s FROM generate_series(1, 20000) n) x;
	INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, reason, next_attempt_at)
	SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, error,
	       CASE error WHEN 'waiting' THEN 'timeout' WHEN 'held' THEN 'auth_required' END, CASE WHEN error = 'waiting' THEN now() + interval '1 hour' END
	  FROM herald.history WHERE finished_at IS NULL`

// TestListPlans: the lists of pages and API read few more rows than they show. No filter makes them scan the history.
func TestListPlans(t *testing.T) {
	t.Parallel()
	s, asked := newLoggedStore(t)
	execScript(t, s, fillLists)
	for _, sql := range []string{"VACUUM ANALYZE herald.history, herald.work", "VACUUM ANALYZE herald.agents"} {
		execScript(t, s, sql)
	}
	chain := uint64(8453)
	waiting := value[uuid.UUID](t, s, `SELECT id FROM herald.deliveries WHERE status = 'waiting' ORDER BY seq DESC LIMIT 1`)
	list := func(f records.Filter) func() error {
		return func() error { _, err := s.Deliveries(t.Context(), f); return err }
	}
	for name, ask := range map[string]func() error{
		"the newest":             list(records.Filter{}),
		"a later page":           list(records.Filter{Before: 10_000}),
		"dead":                   list(records.Filter{Statuses: []outcome.Status{outcome.Dead}}),
		"dead of a reason":       list(records.Filter{Statuses: []outcome.Status{outcome.Dead}, Reason: "server_error"}),
		"dead of another reason": list(records.Filter{Statuses: []outcome.Status{outcome.Dead}, Reason: "timeout"}),
		"of a reason":            list(records.Filter{Reason: "auth_required"}),
		"of an unused reason":    list(records.Filter{Reason: "no_uri"}),
		"held":                   list(records.Filter{Statuses: []outcome.Status{outcome.Held}}),
		"queued":                 list(records.Filter{Statuses: []outcome.Status{outcome.Queued}}),
		"running":                list(records.Filter{Statuses: []outcome.Status{outcome.Running}}),
		"delivered":              list(records.Filter{Statuses: []outcome.Status{outcome.Delivered}}),
		"delivered of a reason":  list(records.Filter{Statuses: []outcome.Status{outcome.Delivered}, Reason: "timeout"}),
		"delivered of an error":  list(records.Filter{Statuses: []outcome.Status{outcome.Delivered}, Sentence: "x"}),
		"of an agent":            list(records.Filter{ChainID: &chain, AgentID: "7"}),
		"of a registry":          list(records.Filter{ChainID: &chain, AgentID: "7", Registry: "0xaa"}),
		"held of a registry":     list(records.Filter{ChainID: &chain, AgentID: "7", Registry: "0xaa", Statuses: []outcome.Status{outcome.Held}}),
		"of a client":            list(records.Filter{Client: "0xc1"}),
		"of an unknown client":   list(records.Filter{Client: "0xff"}),
		"of a client, lately":    list(records.Filter{Client: "0xc1", Since: time.Now().Add(-5 * time.Minute)}),
		"of a client, long ago":  list(records.Filter{Client: "0xc1", Until: time.Now().Add(-19_000 * time.Minute)}),
		"of a transaction":       list(records.Filter{Transaction: "0xff"}),
		"of a short id":          list(records.Filter{FirstID: uuid.MustParse("01234567-0000-0000-0000-000000000000"), LastID: uuid.MustParse("01234567-ffff-ffff-ffff-ffffffffffff")}),
		"of a key":               list(records.Filter{Key: "17"}),
		"of a rare kind":         list(records.Filter{Kind: "ResponseAppended"}),
		"of the last minutes":    list(records.Filter{Since: time.Now().Add(-5 * time.Minute)}),
		"of long ago":            list(records.Filter{Until: time.Now().Add(-19_000 * time.Minute)}),
		"before there were any":  list(records.Filter{Until: time.Now().Add(-30_000 * time.Minute)}),
		"failed lately":          list(records.Filter{Statuses: []outcome.Status{outcome.Rejected, outcome.Dead}, EndedSince: time.Now().Add(-10 * time.Minute)}),
		"failed in a year":       list(records.Filter{Statuses: []outcome.Status{outcome.Dead}, EndedSince: time.Now().AddDate(-1, 0, 0)}),
		"failed of a client":     list(records.Filter{Statuses: []outcome.Status{outcome.Rejected, outcome.Dead}, Client: "0xff"}),
		"dead of a sentence":     list(records.Filter{Statuses: []outcome.Status{outcome.Dead}, Reason: "server_error", Sentence: "dead"}),
		"of a reorg":             list(records.Filter{Reorged: true}),
		"what ended lately":      func() error { _, err := s.CountEnded(t.Context(), time.Now().Add(-10*time.Minute)); return err },
		"groups": func() error {
			_, err := s.Groups(t.Context(), []outcome.Status{outcome.Rejected, outcome.Dead, outcome.Held, outcome.Waiting}, time.Now().Add(-10*time.Minute))
			return err
		},
		"agents":           func() error { _, err := s.Agents(t.Context(), records.AgentFilter{}); return err },
		"agents of a name": func() error { _, err := s.AgentsNamed(t.Context(), "Name", 20); return err },
		"the depth":        func() error { _, err := s.Depth(t.Context()); return err },
		"what is stuck":    func() error { _, err := s.ListStuck(t.Context()); return err },
		"held in vain":     func() error { _, _, err := s.ReleaseEnabled(t.Context(), nil); return err },
		"a blocker": func() error {
			if _, err := s.Blocker(t.Context(), waiting); err != nil && !errors.Is(err, ledger.ErrNotFound) {
				return err
			}
			return nil
		},
		"one delivery": func() error { _, err := s.DeliveryByKey(t.Context(), "17"); return err },
	} {
		asked.take()
		heraldtest.Must(t, ask())
		asked.expectReads(t, s, name, 1500, "Seq Scan")
	}
}

// TestListPlansOfABurst: thousands of deliveries are newer than all that have ended, and none of them has ended. A list
// of both does not read all of them. Nor does the list of their agent.
func TestListPlansOfABurst(t *testing.T) {
	t.Parallel()
	s, asked := newLoggedStore(t)
	execScript(t, s, fillLists)
	execScript(t, s, `
		INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 7, 'eip155:8453:0xbb/1/0xc1', n, 'queued' FROM generate_series(20001, 25000) n;
		INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq)
		SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq FROM herald.history WHERE order_seq > 20000;
		UPDATE herald.history SET order_key = 'eip155:8453:0xbb/1/0xc0' WHERE seq = 1`)
	execScript(t, s, "VACUUM ANALYZE herald.history, herald.work")
	chain := uint64(8453)
	for name, f := range map[string]records.Filter{"the newest": {}, "a later page": {Before: 24_000}, "of a client": {Client: "0xc1"},
		"of an unknown client": {Client: "0xff"}, "of a former client": {Client: "0xc0"},
		"of an agent": {ChainID: &chain, AgentID: "7", Limit: 10}, "a later page of an agent": {ChainID: &chain, AgentID: "7", Before: 24_000},
		"held": {Statuses: []outcome.Status{outcome.Held}}, "waiting": {Statuses: []outcome.Status{outcome.Waiting}},
		"held of a reason":      {Statuses: []outcome.Status{outcome.Held}, Reason: "auth_required"},
		"the queue of an agent": {ChainID: &chain, AgentID: "7", Statuses: []outcome.Status{outcome.Queued}}} {
		asked.take()
		list, err := s.Deliveries(t.Context(), f)
		switch unknown := f.Client == "0xff"; {
		case err != nil || unknown != (len(list) == 0):
			t.Fatal(name, len(list), err)
		case f.Client == "0xc0":
			heraldtest.Equal(t, name, fmt.Sprint(len(list), list[0].Seq), "1 1")
		case strings.HasPrefix(name, "held") || name == "waiting":
			heraldtest.Equal(t, name, fmt.Sprintf("%d %s %t", len(list), list[0].Status, list[0].Seq > list[49].Seq), "50 "+strings.Fields(name)[0]+" true")
		case len(list) > 0 && list[0].Seq < 23_999:
			t.Fatal(name, len(list))
		}
		asked.expectReads(t, s, name, 1500)
	}
	asked.take()
	counts, err := s.Count(t.Context(), records.Filter{ChainID: &chain, AgentID: "8"})
	if err != nil || counts[outcome.Delivered] == 0 {
		t.Fatal(counts, err)
	}
	asked.expectReads(t, s, "the count of another agent", 1500)
}

// TestPlansOfManyAgents: strangers make thousands of agents. A list of those in another state, the counts by state, and
// an agent's deliveries and namesakes do not read their rows.
func TestPlansOfManyAgents(t *testing.T) {
	t.Parallel()
	s, asked := newLoggedStore(t)
	execScript(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, state)
		SELECT 8453, '0xaa', n, CASE n WHEN 4000 THEN 'needs_auth' ELSE 'failed' END FROM generate_series(1, 5000) n`)
	execScript(t, s, "VACUUM ANALYZE herald.agents")
	asked.take()
	list, err := s.Agents(t.Context(), records.AgentFilter{State: records.StateNeedsAuth})
	if err != nil || len(list) != 1 || list[0].AgentID != "4000" {
		t.Errorf("%d agents, %v", len(list), err)
	}
	asked.expectReads(t, s, "the list", 10)
	exec(t, s, `UPDATE herald.agents SET registration = '{"name": "Same"}'`)
	execScript(t, s, "VACUUM ANALYZE herald.agents")
	asked.take()
	list, err = s.AgentsNamed(t.Context(), "same", 20)
	if err != nil || len(list) != 20 || list[0].Name() != "Same" {
		t.Errorf("%d agents, %v", len(list), err)
	}
	asked.expectReads(t, s, "the agents of a name", 50)
	counts, err := s.CountAgents(t.Context())
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the counts", counts, map[string]int64{records.StateFailed: 4999, records.StateNeedsAuth: 1})
	asked.expectReads(t, s, "the count", 600)

	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id) VALUES (8453, '0xab', 4000), (8453, '0xac', 1), (1, '0xad', 4000)`)
	asked.take()
	chain := uint64(8453)
	list, err = s.Agents(t.Context(), records.AgentFilter{ChainID: &chain, AgentID: "4000"})
	if err != nil || len(list) != 2 || list[0].IdentityRegistry != "0xaa" || list[1].IdentityRegistry != "0xab" {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = s.Deliveries(t.Context(), records.Filter{ChainID: &chain, AgentID: "4000", Key: "not of herald.work alone"})
	heraldtest.Must(t, err)
	asked.expectReads(t, s, "a number of all registries", 10, "(chain_id = $1) AND (agent_id = $2)", "(chain_id = $4) AND (agent_id")
}

// TestCountsAreBounded: the counts of open deliveries for metrics, pages and doctor stop at a number, because strangers
// can make very many.
func TestCountsAreBounded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	execScript(t, s, fillLists)
	execScript(t, s, `UPDATE herald.work SET next_attempt_at = now() - interval '1 hour' WHERE status = 'waiting';
		UPDATE herald.work SET handed_at = now() - interval '1 hour' WHERE status = 'queued' AND order_seq % 200 = 19;
		UPDATE herald.work SET reason = 'agent_disabled' WHERE status = 'held' AND order_seq % 400 = 17`)
	for name, most := range map[string]string{"10": "held 10, queued 15, waiting 10", "10000": "held 400, queued 200, waiting 400"} {
		heraldtest.Equal(t, "the depth up to "+name, value[string](t, s, fmt.Sprintf(`SELECT string_agg(concat_ws(' ', status, n), ', ' ORDER BY status)
			FROM (%s) x (status, n, late)`, strings.ReplaceAll(records.Statements.Text("depth"), "$1", name))), most)
	}
	for name, most := range map[string]string{"60": "held agent_disabled 50, held auth_required 60, queued 60, waiting timeout 60",
		"10000": "held agent_disabled 50, held auth_required 350, queued 100, waiting timeout 400"} {
		stuck := strings.NewReplacer("$1", "'1 minute'", "$2", name).Replace(records.Statements.Text("stuck"))
		heraldtest.Equal(t, "what is stuck, up to "+name, value[string](t, s, fmt.Sprintf(`SELECT string_agg(concat_ws(' ', status, nullif(reason, ''), n),
			', ' ORDER BY status, reason) FROM (%s) x (status, reason, n)`, stuck)), most)
	}
}

// TestHeldOfADisabledAgent: ReleaseEnabled reads few of the many held deliveries of an agent that is disabled.
func TestHeldOfADisabledAgent(t *testing.T) {
	t.Parallel()
	s, asked := newLoggedStore(t)
	execScript(t, s, fillLists)
	execScript(t, s, `UPDATE herald.agents SET enabled = agent_id > 2;
		UPDATE herald.work SET status = 'held', reason = 'agent_disabled', next_attempt_at = NULL, agent_id = 1;
		UPDATE herald.work SET reason = 'auth_required', agent_id = 2 WHERE order_seq % 2 = 0`)
	execScript(t, s, "VACUUM ANALYZE herald.work, herald.agents")
	asked.take()
	n, _, err := s.ReleaseEnabled(t.Context(), nil)
	if n != 0 || err != nil {
		t.Errorf("%d released, %v", n, err)
	}
	asked.expectReads(t, s, "the release", 100)

	execScript(t, s, "UPDATE herald.work SET reason = 'auth_required'")
	execScript(t, s, "VACUUM herald.work")
	asked.take()
	if n, _, err := s.ReleaseEnabled(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("%d released, %v", n, err)
	}
	released, err := s.Release(t.Context(), []uint64{8453}, true, 500)
	if len(released) != 0 || err != nil {
		t.Errorf("%d released, %v", len(released), err)
	}
	asked.expectReads(t, s, "a release for other reasons", 5)
}

// TestReleaseBehindManyDisabledAgents: one look does not read all agents with held deliveries that are disabled. The
// agents behind them are released too.
func TestReleaseBehindManyDisabledAgents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	execScript(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, enabled, state)
		SELECT 8453, '0xaa', n, n IN (1, 5500), 'disabled' FROM generate_series(1, 5500) n;
		INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_seq)
		SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', n, n FROM generate_series(1, 5500) n;
		INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, reason)
		SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, key, order_seq, 'held', 'agent_disabled' FROM herald.history`)
	n, tasks, err := s.ReleaseEnabled(t.Context(), nil)
	if n != 2 || len(toRun(tasks)) != 2 || err != nil {
		t.Errorf("%d released, %d tasks, %v", n, len(tasks), err)
	}
}

// explainRead runs a statement with the plan that the store's connections use, and returns how many rows it read.
func explainRead(t *testing.T, s storetest.Postgres, q pgx.TraceQueryStartData) (rows float64, plan string) {
	t.Helper()
	var values []string
	for _, arg := range q.Args {
		switch arg := arg.(type) {
		case time.Time:
			values = append(values, "'"+arg.Format(time.RFC3339Nano)+"'")
		case time.Duration:
			values = append(values, fmt.Sprintf("'%f seconds'", arg.Seconds()))
		case string, fmt.Stringer:
			values = append(values, fmt.Sprintf("'%s'", arg))
		case []outcome.Status, []string, []int64:
			values = append(values, fmt.Sprintf("'{%s}'", strings.Trim(strings.ReplaceAll(fmt.Sprint(arg), " ", ","), "[]")))
		case int, int64, uint64:
			values = append(values, fmt.Sprint(arg))
		default: // a string of a named type
			values = append(values, fmt.Sprintf("'%v'", arg))
		}
	}
	execute := "planned"
	if len(values) > 0 {
		execute += "(" + strings.Join(values, ", ") + ")"
	}
	answers := execScript(t, s, "PREPARE planned AS "+q.SQL+"; EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE "+execute+"; DEALLOCATE planned")
	plan = string(answers[1].Rows[0][0])
	var explained []struct{ Plan readNode }
	heraldtest.Must(t, json.Unmarshal([]byte(plan), &explained))
	return explained[0].Plan.countRead(), plan
}

// readNode is a node of an executed plan.
type readNode struct {
	Relation string     `json:"Relation Name"`
	Type     string     `json:"Node Type"`
	Rows     float64    `json:"Actual Rows"`
	Removed  float64    `json:"Rows Removed by Filter"`
	Loops    float64    `json:"Actual Loops"`
	Plans    []readNode `json:"Plans"`
}

// countRead adds up the rows that were read from tables. Rows of an index-only scan count a tenth.
func (n readNode) countRead() (rows float64) {
	if n.Relation != "" {
		rows = (n.Rows + n.Removed) * n.Loops
		if n.Type == "Index Only Scan" {
			rows /= 10
		}
	}
	for _, below := range n.Plans {
		rows += below.countRead()
	}
	return rows
}

// TestPlans: no statement scans a whole table.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 1000) n`)
	exec(t, s, `INSERT INTO herald.mishaps (chain_id, identity_registry, agent_id, status, reason, deliveries)
		SELECT 8453, '0xaa', n, 'dead', 'timeout', '{}' FROM generate_series(1, 1000) n`)
	exec(t, s, `INSERT INTO herald.alerts (kind, chain_id, identity_registry, agent_id, payload, next_attempt_at)
		SELECT 'deliveries.dead', 8453, '0xaa', n % 1000, '{}', CASE WHEN n % 100 = 0 THEN now() END FROM generate_series(1, 2000) n`)
	exec(t, s, `UPDATE herald.agents SET failing_since = CASE WHEN agent_id < 20 THEN now() - interval '1 hour' END,
		enabled = agent_id > 10, state = CASE WHEN agent_id > 10 THEN 'connected' ELSE 'disabled' END`)
	exec(t, s, `VACUUM ANALYZE herald.agents, herald.mishaps, herald.alerts`)
	const agent = `8453, '0xaa', 7`
	for name, args := range map[string]string{
		"observe":           agent + `, 'connected', NULL, NULL, NULL, NULL, NULL`,
		"set_token":         agent + `, 'https://a.example', 'oauth_client_credentials', 'Authorization', 'x', 1, NULL, 'https://i.example', '/mcp'`,
		"lease_renewal":     agent + `, 'https://a.example', '30 s', NULL`,
		"save_renewal":      agent + `, 'https://a.example', 1, now(), 'x', 1, NULL, 'x', 1`,
		"agents_to_disable": `'5 days', 500, ` + agent + `, ` + agent,
		"note_agents":       `'1 min', 500, ` + agent + `, ` + agent,
		"look_part":         agent + `, 4999`,
		"take_mishaps":      `'5 min', 5000`,
		"claim_alert":       `'1 min'`,
	} {
		plan := explain(t, s, records.Statements.Text(name), args)
		if scan := regexp.MustCompile(`Seq Scan on (agents|alerts|mishaps)\w*`).FindString(plan); scan != "" {
			t.Errorf("%s: %s\n%s", name, scan, plan)
		}
	}
}
