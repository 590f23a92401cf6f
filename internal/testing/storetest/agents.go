package storetest

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// disabled is the outcome of a delivery that is held because its agent is disabled: by its row or, with elsewhere, by
// the servers file (ledger.Outcome.Elsewhere).
func disabled(elsewhere bool) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Free: true, Stage: "check", Elsewhere: elsewhere}
}

// TestReleaseOfEnabled checks that ReleaseEnabled releases deliveries that the servers file held, and no others.
func (s *suite) TestReleaseOfEnabled() {
	byFile, byRow, auth := s.takeOne(1), s.takeOne(2), s.takeOne(3)
	s.record(s.claim(byFile), disabled(true))
	s.is(byFile.ID, outcome.Held, "agent_disabled", 0, 0) // although the row is enabled
	_, _, err := s.EnableAgent(s.Context(), Agent(2), false)
	s.must(err)
	s.record(s.claim(byRow), disabled(false))
	s.heldBack(auth)
	more := s.take(4, 2)
	for _, t := range more {
		s.record(s.claim(t), disabled(true))
	}
	r := s.agentRow(1)
	s.expect(r.State == records.StateDisabled && r.Enabled, "%+v", r)

	release := func(want int, except ...int) []ledger.Task {
		s.Helper()
		n, tasks, err := s.ReleaseEnabled(s.Context(), func(a erc8004.Agent) bool {
			return slices.ContainsFunc(except, func(agent int) bool { return a == Agent(agent) })
		})
		s.must(err)
		tasks = s.toRun(tasks, n)
		s.require(n == want && len(tasks) == want, "%d released, handed out %+v; want %d", n, tasks, want)
		return tasks
	}
	release(0, 1, 4)
	tasks := release(2, 1)
	for i, t := range tasks {
		s.expect(t.ID == more[i].ID && t.N == more[i].N+1, "%+v after %+v", t, more[i])
	}
	r = s.agentRow(4)
	s.expect(r.State == records.StatePending, "%+v", r)
	n, tasks, err := s.ReleaseEnabled(s.Context(), nil)
	tasks = s.toRun(tasks, n)
	s.expect(n == 1 && len(tasks) == 1 && tasks[0].ID == byFile.ID && err == nil, "%d released, %+v, %v", n, tasks, err)
	c := s.claim(tasks[0])
	s.expect(c.Attempt == 1 && !c.Replay, "%+v", c)
	s.record(c, delivered)
	s.is(byRow.ID, outcome.Held, "agent_disabled", 0, 0)
	s.is(auth.ID, outcome.Held, "auth_required", 0, 0)
}

func (s *suite) agentRow(agent int) records.AgentRow {
	s.Helper()
	r, err := s.AgentRow(s.Context(), Agent(agent))
	s.must(err)
	return r
}

// TestAgentStates checks the agent's state after each kind of outcome.
func (s *suite) TestAgentStates() {
	task := s.takeOne(1)
	r := s.agentRow(1)
	s.expect(r.State == records.StatePending, "before anything is tried: %+v", r)
	again := func(o ledger.Outcome) ledger.Outcome {
		o.Status, o.Delay, o.Task, o.Stage = outcome.Waiting, time.Minute, true, "call"
		return o
	}
	for i, tt := range []struct {
		o    ledger.Outcome
		want string
	}{
		{again(ledger.Outcome{Reason: "chain_unavailable"}), records.StatePending}, // the agent was not called
		{again(ledger.Outcome{Reason: "server_error", AgentError: "it said 503"}), records.StateFailed},
		{again(ledger.Outcome{Reason: "throttled", Free: true}), records.StateFailed},
		{again(ledger.Outcome{Reason: "auth_required", AgentError: "it said 401"}), records.StateNeedsAuth},
		{again(ledger.Outcome{Reason: "auth_failed"}), records.StateNeedsAuth}, // failed with a job's own headers
		{again(ledger.Outcome{Reason: "agent_disabled", Free: true}), records.StateDisabled},
		{again(ledger.Outcome{Reason: "throttled", Free: true}), records.StatePending}, // enabled again
		{delivered, records.StateConnected},
	} {
		r := s.record(s.claim(task), tt.o)
		got := s.agentRow(1)
		s.expect(got.State == tt.want, "%d: after %s %s it is %s, want %s", i, tt.o.Status, tt.o.Reason, got.State,
			tt.want)
		if r.Task != nil {
			task = *r.Task
			s.Advance(time.Minute)
		}
	}
	r = s.agentRow(1)
	s.expect(r.LastOKAt != nil && r.LastError == "it said 401" && r.LastErrorAt != nil, "%+v", r)
	_, _, err := s.EnableAgent(s.Context(), Agent(1), false)
	s.must(err)
	s.record(s.claimNew(2), delivered) // a success does not enable the agent
	r = s.agentRow(1)
	s.expect(r.State == records.StateDisabled && !r.Enabled, "%+v", r)
}

// RecordsEndpointOfJob checks that an outcome at an endpoint that the job named leaves the agent's row unchanged.
func (s *suite) RecordsEndpointOfJob() {
	s.record(s.claim(s.takeOne(1)), delivered)
	healthy := s.agentRow(1)
	failing := ledger.Outcome{Status: outcome.Dead, Reason: "server_error", Stage: "call", Called: true, AgentError: "a stranger said 503",
		Endpoint: "https://stranger.example/mcp", Protocol: "2025-03-26", ServerInfo: json.RawMessage(`{"Name":"stranger"}`),
		Tools: ledger.ToolList([]ledger.KnownTool{{Name: "stranger"}}), EndpointOfJob: true}
	succeeding := failing
	succeeding.Status, succeeding.Reason, succeeding.AgentOK, succeeding.AgentError = outcome.Delivered, "", true, ""
	refused := failing
	refused.Status, refused.Reason = outcome.Held, "auth_required"
	for i, o := range []ledger.Outcome{failing, succeeding, refused} {
		s.record(s.claimNew(i+2), o)
		got := s.agentRow(1)
		got.Open, got.UpdatedAt = healthy.Open, healthy.UpdatedAt
		s.expect(reflect.DeepEqual(got, healthy), "after %s %s: %+v, want %+v", o.Status, o.Reason, got, healthy)
	}
	hours, err := s.Store.(Postgres).AgentStats(s.Context(), Agent(1), time.Time{})
	s.must(err)
	s.expect(len(hours) == 1 && hours[0].Calls == 1 && hours[0].Failed == 0, "%+v", hours)
}

// RecordsLearned checks that an outcome's observations of the agent's server are stored, and that missing ones change nothing.
func (s *suite) RecordsLearned() {
	o := delivered
	o.Endpoint, o.Protocol = "https://a.example/mcp", "2025-11-25"
	o.ServerInfo = json.RawMessage(`{"Name":"a","Version":"1"}`)
	o.Tools = ledger.ToolList([]ledger.KnownTool{{Name: "agent.receiveFeedback", Schema: true}, {Name: "other"}})
	o.Registration = &ledger.Registration{Name: "Ann", Document: "ipfs://a", Source: "cid", From: "services[0]", Binding: "domain"}
	found := *o.Registration
	tasks := s.take(1, 3)
	succeeded := func(c *ledger.Claim, want bool) *ledger.Claim {
		s.expect(c.Succeeded == want, "task %d: the agent succeeded within the hour: %t, want %t", c.N, c.Succeeded,
			want)
		return c
	}
	s.record(succeeded(s.claim(tasks[0]), false), o)
	s.record(succeeded(s.claim(tasks[1]), true), delivered)
	s.Advance(ledger.RecentSuccess)
	s.knows(1, records.AgentObservation{Endpoint: o.Endpoint, Protocol: o.Protocol, ServerInfo: o.ServerInfo, Tools: o.Tools, State: records.StateConnected})
	old := o.ServerInfo
	o = delivered
	o.Protocol, o.Tools = "2026-07-28", ledger.ToolList(nil)
	s.record(succeeded(s.claim(tasks[2]), false), o)
	s.knows(1, records.AgentObservation{Endpoint: "https://a.example/mcp", Protocol: "2026-07-28", ServerInfo: old, Tools: json.RawMessage(`[]`), State: records.StateConnected})
	r := s.agentRow(1)
	s.expect(r.Registration != nil && *r.Registration == found, "%+v, want %+v", r.Registration, found)
}

// RecordsLearnedWithoutDelivery checks that ObserveAgent stores an observation, and changes neither last_ok_at nor a disabled
// agent's state.
func (s *suite) RecordsLearnedWithoutDelivery() {
	_, err := s.AgentRow(s.Context(), Agent(1))
	s.expect(errors.Is(err, ledger.ErrNotFound), "%v", err)
	first := records.AgentObservation{Endpoint: "stdio:agent", Protocol: "2025-06-18", ServerInfo: json.RawMessage(`{"Name":"p"}`),
		Tools: ledger.ToolList([]ledger.KnownTool{{Name: "x", Schema: true}}), State: records.StateConnected}
	s.must(s.observe(1, first)) // inserts the agent
	s.knows(1, first)
	r := s.agentRow(1)
	s.expect(r.LastOKAt == nil && r.LastError == "" && r.Enabled, "%+v", r)
	s.must(s.observe(1, records.AgentObservation{State: records.StateNeedsAuth, Error: "it said 401"}))
	first.State, first.Error = records.StateNeedsAuth, "it said 401"
	s.knows(1, first)
	s.must(s.observe(1, records.AgentObservation{}))
	s.knows(1, first)
	_, _, err = s.EnableAgent(s.Context(), Agent(1), false)
	s.must(err)
	s.must(s.observe(1, records.AgentObservation{State: records.StateConnected, Protocol: "2025-11-25"}))
	first.State, first.Protocol = records.StateDisabled, "2025-11-25"
	s.knows(1, first)
	// The servers file disabled this agent when its delivery was held, and does not disable it now.
	s.record(s.claim(s.take(2, 1)[0]), ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Stage: "check", Free: true, Elsewhere: true})
	s.must(s.observe(2, records.AgentObservation{State: records.StateConnected}))
	r = s.agentRow(2)
	s.expect(r.State == records.StateConnected, "enabled, found connected, and %s", r.State)
	for _, state := range []string{records.StateDisabled, records.StatePending, "x"} {
		s.expect(s.observe(1, records.AgentObservation{State: state}) != nil,
			"an agent was found %q", state)
	}
}

func (s *suite) observe(agent int, o records.AgentObservation) error {
	return s.Store.(Postgres).ObserveAgent(s.Context(), Agent(agent), o)
}

// knows checks the stored observations of an agent's server.
func (s *suite) knows(agent int, want records.AgentObservation) {
	s.Helper()
	r := s.agentRow(agent)
	got := records.AgentObservation{Endpoint: r.Endpoint, Protocol: r.Protocol, ServerInfo: r.ServerInfo, Tools: r.Tools, State: r.State, Error: r.LastError}
	s.expect(got.Error == "" || r.LastErrorAt != nil, "nobody knows when it failed")
	for _, raw := range []*json.RawMessage{&got.ServerInfo, &got.Tools, &want.ServerInfo, &want.Tools} {
		var v any
		_ = json.Unmarshal(*raw, &v)
		*raw, _ = json.Marshal(v) // jsonb adds spaces
	}
	heraldtest.Equal(s, "what is known of the agent", got, want)
}
