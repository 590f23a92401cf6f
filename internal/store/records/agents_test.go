package records_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestEnableAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := agentNamed("1")
	state := func() string {
		t.Helper()
		return value[string](t, s, `SELECT concat_ws(' ', enabled, state) FROM herald.agents WHERE agent_id = 1`)
	}
	if n, tasks, err := s.EnableAgent(t.Context(), a, false); n != 0 || tasks != nil || err != nil || state() != "f disabled" {
		t.Fatal(n, tasks, err, state()) // the agent has no row yet
	}
	for from := 1; from <= 1100; from += 500 {
		accept(t, s, feedbacks(1, from, min(500, 1101-from))...)
	}
	other := acceptOne(t, s, feedback(2, 1))
	record(t, s, claim(t, s, other), ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Free: true})
	if d := read(t, s, other.ID); d.Status != outcome.Queued { // agent 2 is enabled, so nothing holds it
		t.Errorf("%+v", d)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = 'agent_disabled', handed_at = NULL WHERE agent_id = 1`)
	exec(t, s, `UPDATE herald.deliveries SET reason = 'auth_required' WHERE agent_id = 1 AND order_seq = 7`)
	released, tasks, err := s.EnableAgent(t.Context(), a, true)
	if released != 1099 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent || err != nil || state() != "t pending" || countDispatched(t, s) != ledger.MaxDispatchedPerAgent {
		t.Errorf("%d released, %d tasks, %v, %s, %d dispatched", released, len(tasks), err, state(), countDispatched(t, s))
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE status = 'held'`); n != 1 {
		t.Errorf("%d are held", n)
	}
	record(t, s, claim(t, s, tasks[0]), delivered)
	if n, _, err := s.EnableAgent(t.Context(), a, true); n != 0 || err != nil || state() != "t connected" {
		t.Error(n, err, state())
	}
}

// TestAgentEnabledDuringAttempt: a delivery was claimed while its agent was disabled. If the agent was enabled before
// the outcome is recorded, the delivery is not held, because nothing would release it.
func TestAgentEnabledDuringAttempt(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := agentNamed("1")
	task := acceptOne(t, s, feedback(1, 1))
	if _, _, err := s.EnableAgent(t.Context(), a, false); err != nil {
		t.Fatal(err)
	}
	c := claim(t, s, task)
	if c.Enabled {
		t.Fatalf("%+v", c)
	}
	if _, _, err := s.EnableAgent(t.Context(), a, true); err != nil {
		t.Fatal(err)
	}
	r := record(t, s, c, ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Stage: "claim", Free: true})
	if len(r.Next) != 2 || !r.Next[1].Ended || r.Next[0].ID != task.ID || r.Next[0].N != 2 {
		t.Fatalf("%+v", r)
	}
	if c = claim(t, s, r.Next[0]); !c.Enabled || c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
	// While the agent is disabled, the delivery is held.
	if _, _, err := s.EnableAgent(t.Context(), a, false); err != nil {
		t.Fatal(err)
	}
	if r := record(t, s, c, ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Stage: "claim", Free: true}); len(r.Next) != 0 {
		t.Errorf("%+v", r)
	}
	if d := read(t, s, c.ID); d.Status != outcome.Held || d.Attempts != 0 || len(d.History) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent := range 5 {
		accept(t, s, feedbacks(agent, 1, 12)...)
	}
	exec(t, s, `UPDATE herald.agents SET state = 'failed' WHERE agent_id IN (1, 3)`)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id) VALUES (1, '0xaa', 3)`)
	chain := uint64(8453)
	list := func(f records.AgentFilter) (names []string) {
		t.Helper()
		for {
			page, err := s.Agents(t.Context(), f)
			heraldtest.Must(t, err)
			for _, r := range page {
				names = append(names, r.AgentID)
				f.After = &erc8004.Agent{ChainID: r.ChainID, Registry: r.IdentityRegistry, ID: r.AgentID}
			}
			if len(page) == 0 || f.Limit == 0 {
				return names
			}
		}
	}
	for want, f := range map[string]records.AgentFilter{
		"3 0 1 2 3 4": {}, "0 1 2 3 4": {ChainID: &chain, Limit: 2}, "3 3": {AgentID: "3", Limit: 1}, "1 3": {State: "failed"}, "3": {State: "failed", AgentID: "3"},
	} {
		if got := strings.Join(list(f), " "); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	_, tasks := accept(t, s, feedbacks(9, 1, 12)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), ending(outcome.Held, "auth_required"))
	ok := delivered
	ok.Endpoint, ok.Protocol, ok.ServerInfo = "https://a.example/mcp", "2025-06-18", []byte(`{"name": "a"}`)
	record(t, s, claim(t, s, tasks[2]), ok)
	claim(t, s, tasks[3])
	exec(t, s, `UPDATE herald.agents SET policy = '{"onUnknown": "hold"}', raised_epoch = 3, tools = '["x"]' WHERE agent_id = 9`)
	r, err := s.AgentRow(t.Context(), agentNamed("9"))
	heraldtest.Must(t, err)
	if r.ChainID != 8453 || r.AgentID != "9" || !r.Enabled || r.State != "connected" || r.LastOKAt == nil || r.Policy.OnUnknown != policy.OnUnknownHold || *r.RaisedEpoch != 3 ||
		r.Endpoint != ok.Endpoint || r.Protocol != ok.Protocol || string(r.Tools) != `["x"]` || string(r.Totals) != `{"delivered": 1}` || r.CreatedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	if r.Open[outcome.Queued] != 8 || r.Open[outcome.Running] != 1 || r.Open[outcome.Waiting] != 1 || r.Open[outcome.Held] != 1 || len(r.Open) != 4 {
		t.Errorf("open %v", r.Open)
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"lastOkAt":"`) || !strings.Contains(string(b), `"open":{"held":1,`) || strings.Contains(string(b), "lastError") {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := s.AgentRow(t.Context(), agentNamed("77")); !errors.Is(err, ledger.ErrNotFound) {
		t.Error(err)
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first, err := s.BeginAudit(t.Context(), records.Audit{Actor: "root@host", Action: "delivery replay", Filter: []byte(`{"status": "dead"}`), Matched: 12, Note: "because\x00"})
	heraldtest.Must(t, err)
	second, err := s.BeginAudit(t.Context(), records.Audit{Actor: "root@host", Action: "agent disable", Matched: 1})
	if err != nil || second <= first {
		t.Fatal(second, err)
	}
	heraldtest.Must(t, s.EndAudit(t.Context(), first, 11, "cancelled", ""))
	heraldtest.Must(t, s.EndAudit(t.Context(), second, 0, "failed", "the database is away"))
	if err := s.EndAudit(t.Context(), 999, 0, "done", ""); !errors.Is(err, ledger.ErrNotFound) {
		t.Error(err)
	}
	third, err := s.BeginAudit(t.Context(), records.Audit{Actor: "x", Action: "y"})
	heraldtest.Must(t, err)
	list, err := s.Audits(t.Context(), 0, 0)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	if a := list[0]; a.ID != third || a.State != "running" || a.FinishedAt != nil {
		t.Errorf("%+v", a)
	}
	if a := list[1]; a.State != "failed" || a.Note != "the database is away" || a.FinishedAt == nil || a.Filter != nil {
		t.Errorf("%+v", a)
	}
	if a := list[2]; a.Moved != 11 || a.Matched != 12 || a.State != "cancelled" || a.Note != "because\uFFFD" || string(a.Filter) != `{"status": "dead"}` || a.At.IsZero() {
		t.Errorf("%+v", a)
	}
	if list, err := s.Audits(t.Context(), 0, 1); err != nil || len(list) != 1 {
		t.Error(list, err)
	}
}

// TestSetPolicy: a stored policy keeps the fields that another SetPolicy does not name.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := agentNamed("1")
	set := func(p policy.Policy) string {
		t.Helper()
		heraldtest.Must(t, s.SetPolicy(t.Context(), a, p))
		return value[string](t, s, `SELECT policy::text FROM herald.agents`)
	}
	heraldtest.Equal(t, "of an agent not known yet", set(policy.Policy{OnUnknown: policy.OnUnknownHold}), `{"onUnknown": "hold"}`)
	exec(t, s, `UPDATE herald.agents SET policy = policy || '{"other": 1}'`)
	if got := set(policy.Policy{}); got != `{"other": 1, "onUnknown": "hold"}` {
		t.Error(got)
	}
	if c := claim(t, s, acceptOne(t, s, feedback(1, 1))); c.Policy.OnUnknown != policy.OnUnknownHold {
		t.Errorf("%+v", c)
	}
	if got := set(policy.Policy{OnUnknown: policy.OnUnknownResend}); got != `{"other": 1, "onUnknown": "resend"}` {
		t.Error(got)
	}
	if c := claim(t, s, acceptOne(t, s, feedback(1, 2))); c.Policy.OnUnknown != policy.OnUnknownResend { // set between two claims
		t.Errorf("%+v", c)
	}
	exec(t, s, `UPDATE herald.agents SET policy = '[1]'`)
	if got := set(policy.Policy{OnUnknown: policy.OnUnknownHold}); got != `{"onUnknown": "hold"}` {
		t.Error(got)
	}
}

// TestLargePolicy: a policy of the largest size takes effect, although its text is longer in Postgres, and settings may
// be added to it.
func TestLargePolicy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := agentNamed("1")
	tags := strings.Repeat(`"t",`, (policy.MaxBytes-100)/4)
	p, _, err := policy.Parse([]byte(`{"enabled":false,"filters":[{"action":"skip","when":{"tag1":[`+tags+`""]}}]}`), policy.Operator, nil)
	heraldtest.Must(t, err)
	for _, level := range []policy.Level{policy.Operator, policy.Own} {
		heraldtest.Must(t, s.ReplacePolicy(t.Context(), a, level, p))
	}
	heraldtest.Must(t, s.SetPolicy(t.Context(), a, policy.Policy{OnUnknown: policy.OnUnknownHold, BatchSize: 7}))
	c := claim(t, s, acceptOne(t, s, feedback(1, 1)))
	for _, got := range []policy.Policy{c.Policy, c.OwnPolicy} {
		if len(got.Filters) != 1 || !got.Disables() {
			t.Errorf("%d filters, disables %v", len(got.Filters), got.Disables())
		}
	}
	if c.Policy.OnUnknown != policy.OnUnknownHold || c.Policy.BatchSize != 7 {
		t.Error(c.Policy.OnUnknown, c.Policy.BatchSize)
	}
}

// TestReleaseEnabledInPages releases more agents, and more deliveries of one agent, than a page contains.
func TestReleaseEnabledInPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for from := 1; from <= 1100; from += 500 {
		accept(t, s, feedbacks(1, from, min(500, 1101-from))...)
	}
	for agent := 2; agent <= 4; agent++ {
		accept(t, s, feedbacks(agent, 1, 2)...)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = 'agent_disabled', handed_at = NULL`)
	exec(t, s, `UPDATE herald.agents SET enabled = false, state = 'disabled' WHERE agent_id = 3`)
	asked := map[erc8004.Agent]int{}
	n, tasks, err := s.ReleaseEnabled(t.Context(), func(a erc8004.Agent) bool {
		if asked[a]++; asked[a] > 1 {
			t.Errorf("asked again about %s", a) // a query for each held delivery
		}
		return a == agentNamed("4")
	})
	if n != 1102 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent+2 || err != nil {
		t.Errorf("%d released, %d tasks, %v", n, len(tasks), err)
	}
	if left := value[string](t, s, `SELECT string_agg(DISTINCT agent_id::text, ' ') FROM herald.deliveries WHERE status = 'held'`); left != "3 4" {
		t.Errorf("still held are those of %s", left)
	}
}
