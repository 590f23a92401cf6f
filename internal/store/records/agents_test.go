package records_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// holdMany accepts 1100 deliveries of agent 1, more than a release has in a page, and holds all deliveries. The seventh is
// held for another reason.
func holdMany(t *testing.T, s storetest.Postgres, why outcome.Reason) {
	t.Helper()
	for from := 1; from <= 1100; from += 500 {
		accept(t, s, feedbacks(1, from, min(500, 1101-from))...)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = $1, handed_at = NULL`, why)
	exec(t, s, `UPDATE herald.deliveries SET reason = 'held_unknown' WHERE agent_id = 1 AND order_seq = 7`)
}

// countHeld returns how many deliveries of each agent are held, as "agent:count".
func countHeld(t *testing.T, s storetest.Postgres) string {
	t.Helper()
	return value[string](t, s, `SELECT string_agg(agent_id || ':' || n, ' ' ORDER BY agent_id)
		FROM (SELECT agent_id, count(*) AS n FROM herald.deliveries WHERE status = 'held' GROUP BY agent_id) h`)
}

func TestEnableAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := storetest.Agent(1)
	state := func() string {
		t.Helper()
		return value[string](t, s, `SELECT concat_ws(' ', enabled, state) FROM herald.agents WHERE agent_id = 1`)
	}
	if n, tasks, err := s.EnableAgent(t.Context(), a, false); n != 0 || tasks != nil || err != nil || state() != "f disabled" {
		t.Fatal(n, tasks, err, state()) // the agent has no row yet
	}
	acceptOne(t, s, feedback(2, 1))
	holdMany(t, s, outcome.AgentDisabled)
	released, tasks, err := s.EnableAgent(t.Context(), a, true)
	if released != 1099 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent || err != nil || state() != "t pending" || countDispatched(t, s) != ledger.MaxDispatchedPerAgent {
		t.Errorf("%d released, %d tasks, %v, %s, %d dispatched", released, len(tasks), err, state(), countDispatched(t, s))
	}
	heraldtest.Equal(t, "held deliveries", countHeld(t, s), "1:1 2:1")
	record(t, s, claim(t, s, tasks[0]), delivered)
	enable(t, s, 1, true)
	heraldtest.Equal(t, "enabled again", state(), "t connected")
}

// TestHoldWithoutCause: a delivery was claimed while its agent was disabled, or called without a token. If the agent was
// enabled or the token stored before the outcome is recorded, the delivery is not held, because nothing would release
// it. If it was called with the present token, or its agent is disabled again, it is held.
func TestHoldWithoutCause(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	disabledHeld := ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Stage: "claim", Free: true}
	for agent, c := range []struct {
		held       ledger.Outcome
		begin, end func(agent int) // of the cause
	}{
		{disabledHeld, func(agent int) { enable(t, s, agent, false) }, func(agent int) { enable(t, s, agent, true) }},
		{authHeld, func(int) {},
			func(agent int) { storeToken(t, s, sealedFor(t, k, storetest.Agent(agent), tokenOrigin, "one")) }},
	} {
		task := acceptOne(t, s, feedback(agent, 1))
		c.begin(agent)
		first := claim(t, s, task)
		heraldtest.Equal(t, "the claim's agent is enabled", first.Enabled, c.held.Reason != outcome.AgentDisabled)
		c.end(agent)
		next := record(t, s, first, c.held).Next
		if len(next) != 2 || next[1] != (ledger.Task{ID: task.ID, N: task.N, Ended: true}) {
			t.Fatalf("%s: the next tasks are %+v", c.held.Reason, next)
		}
		again := claim(t, s, next[0])
		if again.ID != task.ID || again.N != task.N+1 || !again.Enabled || again.Attempt != 1 {
			t.Errorf("%+v", again)
		}
		c.begin(agent)
		heraldtest.Equal(t, "the next tasks", len(record(t, s, again, c.held).Next), 0)
		d := read(t, s, task.ID)
		heraldtest.Equal(t, "the delivery", fmt.Sprint(d.Status, " ", d.Reason, " ", d.Attempts, len(d.History)),
			fmt.Sprint("held ", c.held.Reason, " 0 0"))
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
		heraldtest.Equal(t, fmt.Sprintf("agents of %+v", f), strings.Join(list(f), " "), want)
	}
	_, tasks := accept(t, s, feedbacks(9, 1, 12)...)
	record(t, s, claim(t, s, tasks[0]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[1]), ending(outcome.Held, "auth_required"))
	ok := delivered
	ok.Endpoint, ok.Protocol, ok.ServerInfo = "https://a.example/mcp", "2025-06-18", []byte(`{"name": "a"}`)
	record(t, s, claim(t, s, tasks[2]), ok)
	claim(t, s, tasks[3])
	exec(t, s, `UPDATE herald.agents SET policy = '{"onUnknown": "hold"}', raised_epoch = 3, tools = '["x"]' WHERE agent_id = 9`)
	r, err := s.AgentRow(t.Context(), storetest.Agent(9))
	heraldtest.Must(t, err)
	if r.ChainID != 8453 || r.AgentID != "9" || !r.Enabled || r.State != "connected" || r.LastOKAt == nil || r.Policy.OnUnknown != policy.OnUnknownHold || *r.RaisedEpoch != 3 ||
		r.Endpoint != ok.Endpoint || r.Protocol != ok.Protocol || string(r.Tools) != `["x"]` || string(r.Totals) != `{"delivered": 1}` || r.CreatedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	heraldtest.Equal(t, "open",
		r.Open, map[outcome.Status]int64{outcome.Queued: 8, outcome.Running: 1, outcome.Waiting: 1, outcome.Held: 1})
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"lastOkAt":"`) || !strings.Contains(string(b), `"open":{"held":1,`) || strings.Contains(string(b), "lastError") {
		t.Errorf("%s, %v", b, err)
	}
	_, err = s.AgentRow(t.Context(), storetest.Agent(77))
	heraldtest.Fails(t, "an unknown agent", err, ledger.ErrNotFound)
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
	heraldtest.Fails(t, "an unknown audit", s.EndAudit(t.Context(), 999, 0, "done", ""), ledger.ErrNotFound)
	third, err := s.BeginAudit(t.Context(), records.Audit{Actor: "x", Action: "y"})
	heraldtest.Must(t, err)
	list, err := s.Audits(t.Context(), 0, 0)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for i := range list {
		a := &list[i]
		if a.At.IsZero() || (a.FinishedAt == nil) != (a.State == "running") {
			t.Errorf("%+v", a)
		}
		a.At, a.FinishedAt = time.Time{}, nil
	}
	heraldtest.Equal(t, "the audit", list, []records.Audit{
		{ID: third, Actor: "x", Action: "y", State: "running"},
		{ID: second, Actor: "root@host", Action: "agent disable", Matched: 1, State: "failed", Note: "the database is away"},
		{ID: first, Actor: "root@host", Action: "delivery replay", Filter: []byte(`{"status": "dead"}`), Matched: 12, Moved: 11,
			State: "cancelled", Note: "because\uFFFD"}})
	list, err = s.Audits(t.Context(), 0, 1)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "audits of a page", len(list), 1)
}

// TestOldAudits: a later page of the audit reads no newer rows.
func TestOldAudits(t *testing.T) {
	t.Parallel()
	s, asked := newLoggedStore(t)
	execScript(t, s, `INSERT INTO herald.audit (actor, action) SELECT 'root@host', 'delivery replay' FROM generate_series(1, 5000);
		ANALYZE herald.audit`)
	asked.take()
	list, err := s.Audits(t.Context(), 11, 0)
	if err != nil || len(list) != 10 || list[0].ID != 10 {
		t.Fatal(list, err)
	}
	asked.expectReads(t, s, "a later page", 20)
}

// TestSetPolicy: a stored policy keeps the fields that another SetPolicy does not name.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := storetest.Agent(1)
	set := func(p policy.Policy) string {
		t.Helper()
		heraldtest.Must(t, s.SetPolicy(t.Context(), a, p))
		return value[string](t, s, `SELECT policy::text FROM herald.agents`)
	}
	heraldtest.Equal(t, "of an agent not known yet",
		set(policy.Policy{OnUnknown: policy.OnUnknownHold}), `{"onUnknown": "hold"}`)
	exec(t, s, `UPDATE herald.agents SET policy = policy || '{"other": 1}'`)
	heraldtest.Equal(t, "the policy", set(policy.Policy{}), `{"other": 1, "onUnknown": "hold"}`)
	heraldtest.Equal(t, "onUnknown of a claim",
		claim(t, s, acceptOne(t, s, feedback(1, 1))).Policy.OnUnknown, policy.OnUnknownHold)
	heraldtest.Equal(t, "the policy",
		set(policy.Policy{OnUnknown: policy.OnUnknownResend}), `{"other": 1, "onUnknown": "resend"}`)
	heraldtest.Equal(t, "onUnknown of a claim after the change",
		claim(t, s, acceptOne(t, s, feedback(1, 2))).Policy.OnUnknown, policy.OnUnknownResend)
	exec(t, s, `UPDATE herald.agents SET policy = '[1]'`)
	heraldtest.Equal(t, "the policy", set(policy.Policy{OnUnknown: policy.OnUnknownHold}), `{"onUnknown": "hold"}`)
}

// TestLargePolicy: a policy of the largest size takes effect, although its text is longer in Postgres, and settings may
// be added to it.
func TestLargePolicy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := storetest.Agent(1)
	tags := strings.Repeat(`"t",`, (policy.MaxBytes-100)/4)
	p, _, err := policy.Parse([]byte(`{"enabled":false,"filters":[{"action":"skip","when":{"tag1":[`+tags+`""]}}]}`), policy.Operator, nil)
	heraldtest.Must(t, err)
	for _, level := range []policy.Level{policy.Operator, policy.Own} {
		heraldtest.Must(t, s.ReplacePolicy(t.Context(), a, level, p))
	}
	heraldtest.Must(t, s.SetPolicy(t.Context(), a, policy.Policy{OnUnknown: policy.OnUnknownHold, BatchSize: 7}))
	c := claim(t, s, acceptOne(t, s, feedback(1, 1)))
	for _, got := range []policy.Policy{c.Policy, c.OwnPolicy} {
		heraldtest.Equal(t, "filters", len(got.Filters), 1)
		heraldtest.Equal(t, "it disables the agent", got.Disables(), true)
	}
	heraldtest.Equal(t, "onUnknown", c.Policy.OnUnknown, policy.OnUnknownHold)
	heraldtest.Equal(t, "batchSize", c.Policy.BatchSize, 7)
}

// TestReleaseEnabledInPages releases more agents, and more deliveries of one agent, than a page contains.
func TestReleaseEnabledInPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent := 2; agent <= 4; agent++ {
		accept(t, s, feedbacks(agent, 1, 2)...)
	}
	holdMany(t, s, outcome.AgentDisabled)
	exec(t, s, `UPDATE herald.agents SET enabled = false, state = 'disabled' WHERE agent_id = 3`)
	asked := map[erc8004.Agent]int{}
	n, tasks, err := s.ReleaseEnabled(t.Context(), func(a erc8004.Agent) bool {
		if asked[a]++; asked[a] > 1 {
			t.Errorf("asked again about %s", a) // a query for each held delivery
		}
		return a == storetest.Agent(4)
	})
	if n != 1101 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent+2 || err != nil {
		t.Errorf("%d released, %d tasks, %v", n, len(tasks), err)
	}
	heraldtest.Equal(t, "held deliveries", countHeld(t, s), "1:1 3:2 4:2")
}

// recordNew accepts the feedback of agent 1 with this index, and records o as the outcome of its first attempt.
func recordNew(t *testing.T, s storetest.Postgres, index int, o ledger.Outcome) {
	t.Helper()
	record(t, s, claim(t, s, acceptOne(t, s, feedback(1, index))), o)
}

func agentRow(t *testing.T, s storetest.Postgres, agent int) records.AgentRow {
	t.Helper()
	r, err := s.AgentRow(t.Context(), storetest.Agent(agent))
	heraldtest.Must(t, err)
	return r
}

// expectKnown checks the stored endpoint, protocol, server info, tools, state and last error of an agent.
func expectKnown(t *testing.T, s storetest.Postgres, agent int, want string) {
	t.Helper()
	r := agentRow(t, s, agent)
	got := fmt.Sprintf("%s %s %s %s %s %s", r.Endpoint, r.Protocol, r.ServerInfo, r.Tools, r.State, r.LastError)
	heraldtest.Equal(t, fmt.Sprint("what is known of agent ", agent), got, want)
	heraldtest.Equal(t, "the last error has a time", r.LastErrorAt != nil, r.LastError != "")
}

// TestEndpointOfJob: an outcome at an endpoint that the job named leaves the agent's row unchanged, and counts no call.
func TestEndpointOfJob(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	recordNew(t, s, 1, delivered)
	healthy := agentRow(t, s, 1)
	failing := ledger.Outcome{Status: outcome.Dead, Reason: "server_error", Stage: "call", Called: true, AgentError: "a stranger said 503",
		Endpoint: "https://stranger.example/mcp", Protocol: "2025-03-26", ServerInfo: json.RawMessage(`{"Name":"stranger"}`),
		Tools: ledger.ToolList([]ledger.KnownTool{{Name: "stranger"}}), EndpointOfJob: true}
	succeeding, refused := failing, failing
	succeeding.Status, succeeding.Reason, succeeding.AgentOK, succeeding.AgentError = outcome.Delivered, "", true, ""
	refused.Status, refused.Reason = outcome.Held, "auth_required"
	for i, o := range []ledger.Outcome{failing, succeeding, refused} {
		recordNew(t, s, i+2, o)
		got := agentRow(t, s, 1)
		got.Open, got.UpdatedAt = healthy.Open, healthy.UpdatedAt
		heraldtest.Equal(t, fmt.Sprint("the agent after ", o.Status, " ", o.Reason), got, healthy)
	}
	heraldtest.Equal(t, "the calls", callsSince(t, s, 1), records.CallSummary{Calls: 1})
}

// TestOutcomeObservations: an outcome's observations of the agent's server are stored, and missing ones change nothing.
func TestOutcomeObservations(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	full, part := delivered, delivered
	full.Endpoint, full.Protocol, full.ServerInfo = "https://a.example/mcp", "2025-11-25", json.RawMessage(`{"name":"a"}`)
	full.Tools = ledger.ToolList([]ledger.KnownTool{{Name: "agent.receiveFeedback", Schema: true}, {Name: "other"}})
	full.Registration = &ledger.Registration{Name: "Ann", Document: "ipfs://a", Source: "cid", From: "services[0]", Binding: "domain"}
	part.Protocol, part.Tools = "2026-07-28", ledger.ToolList(nil)
	known := `https://a.example/mcp 2025-11-25 {"name": "a"} [{"name": "agent.receiveFeedback", "schema": true}, {"name": "other", "schema": false}] connected `
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...)
	for i, tt := range []struct {
		later     time.Duration // after the last success
		o         ledger.Outcome
		succeeded bool // the agent succeeded within the hour, as the claim says
		known     string
	}{
		{0, full, false, known},
		{ledger.RecentSuccess - time.Minute, delivered, true, known},
		{ledger.RecentSuccess, part, false, `https://a.example/mcp 2026-07-28 {"name": "a"} [] connected `},
	} {
		exec(t, s, `UPDATE herald.agents SET last_ok_at = last_ok_at - $1::interval`, tt.later)
		c := claim(t, s, tasks[i])
		heraldtest.Equal(t, fmt.Sprint("a recent success at claim ", i), c.Succeeded, tt.succeeded)
		record(t, s, c, tt.o)
		expectKnown(t, s, 1, tt.known)
		heraldtest.Equal(t, "the registration", agentRow(t, s, 1).Registration, full.Registration)
	}
}

// TestObserveAgent: an observation is stored, and changes neither the time of the last success nor the state of a
// disabled agent.
func TestObserveAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	observe := func(agent int, o records.AgentObservation) error {
		return s.ObserveAgent(t.Context(), storetest.Agent(agent), o)
	}
	heraldtest.Must(t, observe(1, records.AgentObservation{Endpoint: "stdio:agent", Protocol: "2025-06-18", ServerInfo: json.RawMessage(`{"name":"p"}`),
		Tools: ledger.ToolList([]ledger.KnownTool{{Name: "x", Schema: true}}), State: records.StateConnected})) // inserts the agent
	const server = ` {"name": "p"} [{"name": "x", "schema": true}] `
	expectKnown(t, s, 1, "stdio:agent 2025-06-18"+server+"connected ")
	for _, o := range []records.AgentObservation{{State: records.StateNeedsAuth, Error: "it said 401"}, {}} {
		heraldtest.Must(t, observe(1, o))
		expectKnown(t, s, 1, "stdio:agent 2025-06-18"+server+"needs_auth it said 401")
	}
	r := agentRow(t, s, 1)
	if r.LastOKAt != nil || !r.Enabled {
		t.Errorf("%+v", r)
	}
	enable(t, s, 1, false)
	heraldtest.Must(t, observe(1, records.AgentObservation{State: records.StateConnected, Protocol: "2025-11-25"}))
	expectKnown(t, s, 1, "stdio:agent 2025-11-25"+server+"disabled it said 401")
	// The servers file disabled this agent when its delivery was held, and does not disable it now.
	record(t, s, claim(t, s, acceptOne(t, s, feedback(2, 1))),
		ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Stage: "check", Free: true, Elsewhere: true})
	heraldtest.Must(t, observe(2, records.AgentObservation{State: records.StateConnected}))
	heraldtest.Equal(t, "the state of the enabled agent", agentRow(t, s, 2).State, records.StateConnected)
	for _, state := range []string{records.StateDisabled, records.StatePending, "x"} {
		if observe(1, records.AgentObservation{State: state}) == nil {
			t.Errorf("an agent was found %q", state)
		}
	}
}

// TestObserveUnstorableText: observations with text that Postgres cannot store are changed until it can, and cause no
// error.
func TestObserveUnstorableText(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	bad := "a\x00b\xff" + strings.Repeat("é", storable.MaxError)
	err := s.ObserveAgent(t.Context(), storetest.Agent(1), records.AgentObservation{Endpoint: bad, Protocol: bad, ServerInfo: json.RawMessage("{\"name\": \"\\u0000\"}"),
		Tools: json.RawMessage("no JSON \x00" + strings.Repeat("x", 20<<10)), State: records.StateFailed, Error: bad})
	heraldtest.Must(t, err)
	r, err := s.AgentRow(t.Context(), storetest.Agent(1))
	if err != nil || r.State != records.StateFailed || len(r.Endpoint) > storable.MaxURL || len(r.Protocol) > storable.MaxName || len(r.LastError) > storable.MaxError ||
		!strings.Contains(string(r.ServerInfo), "\uFFFD") || !strings.Contains(string(r.Tools), `"truncated"`) {
		t.Errorf("%v, %.300s, %s, %.300s", err, r.Endpoint, r.ServerInfo, r.Tools)
	}
}
