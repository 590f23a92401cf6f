package model

import (
	"cmp"
	"context"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// agent is the row of an agent: the operator's settings, and the observations of the agent's server.
type agent struct {
	epoch int64
	// raised is the value of epoch after a failed call raised it (Outcome.Moved). neverRaised: no such call since the
	// last success.
	raised   int64
	disabled bool
	policy   policy.Policy
	own      policy.Policy
	known    records.AgentRow // observations of the agent's server
}

// neverRaised represents raised_epoch IS NULL.
const neverRaised = -1

// ensureAgent returns the agent, and inserts it if it is unknown.
func (s *Store) ensureAgent(a erc8004.Agent) *agent {
	g := s.agents[a]
	if g == nil {
		g = &agent{raised: neverRaised,
			known: records.AgentRow{State: records.StatePending, CreatedAt: s.now(), UpdatedAt: s.now()}}
		s.agents[a] = g
	}
	return g
}

// observeOutcome updates the agent from the outcome of an attempt, unless the job named the endpoint, or a wait began
// before the agent was resolved. If the agent's endpoint may have moved (Outcome.Moved), it raises the epoch. After a
// failed call has raised the epoch, another failed call does not raise it again before a success.
func (s *Store) observeOutcome(a erc8004.Agent, c *ledger.Claim, o ledger.Outcome) {
	isUnresolved := o.Status == outcome.Waiting && !o.Called && o.AgentError == "" && isEarlyStage(o.Stage)
	if o.EndpointOfJob || isUnresolved {
		return
	}
	g, now := s.ensureAgent(a), s.now()
	k := &g.known
	switch {
	case g.disabled || o.Reason == outcome.AgentDisabled:
		k.State = records.StateDisabled
	case o.AgentOK:
		k.State = records.StateConnected
	case o.Reason == outcome.AuthRequired:
		k.State = records.StateNeedsAuth
	case o.AgentError != "":
		k.State = records.StateFailed
	case k.State == records.StateDisabled:
		k.State = records.StatePending
	}
	switch {
	case o.AgentOK:
		k.LastOKAt, k.FailingSince, g.raised = &now, nil, neverRaised
	case o.AgentError != "" && k.FailingSince == nil:
		k.FailingSince = &now
	}
	if o.Moved && c.Epoch == g.epoch && g.raised != g.epoch {
		g.epoch++
		if !o.AgentOK {
			g.raised = g.epoch
		}
	}
	if o.Called || o.AgentError != "" {
		k.LastCalledAt = &now
	}
	if k.Protocol, k.UpdatedAt = cmp.Or(o.Protocol, k.Protocol), now; o.AgentError != "" {
		k.LastError, k.LastErrorAt = o.AgentError, &now
	}
}

// AgentRow reads one agent, without its counters and without its server's address, registration and tools.
func (s *Store) AgentRow(_ context.Context, a erc8004.Agent) (records.AgentRow, error) {
	defer s.lock()()
	g := s.agents[a]
	if g == nil {
		return records.AgentRow{}, ledger.ErrNotFound
	}
	r := g.known
	r.ChainID, r.IdentityRegistry, r.AgentID = a.ChainID, a.Registry, a.ID
	r.Epoch, r.Enabled, r.Policy, r.OwnPolicy = g.epoch, !g.disabled, g.policy, g.own
	return r, nil
}

// SetPolicy merges p into the agent's policy; empty fields change nothing.
func (s *Store) SetPolicy(_ context.Context, a erc8004.Agent, p policy.Policy) error {
	defer s.lock()()
	s.ensureAgent(a).policy = s.ensureAgent(a).policy.Override(p)
	return nil
}

// ReplacePolicy stores a policy of the agent.
func (s *Store) ReplacePolicy(_ context.Context, a erc8004.Agent, level policy.Level, p policy.Policy) error {
	defer s.lock()()
	if g := s.ensureAgent(a); level == policy.Own {
		g.own = p
	} else {
		g.policy = p
	}
	return nil
}

// EnableAgent enables or disables an agent. Enabling releases the deliveries that were held because it was disabled.
func (s *Store) EnableAgent(_ context.Context, a erc8004.Agent,
	enabled bool) (released int, tasks []ledger.Task, err error) {
	defer s.lock()()
	g := s.ensureAgent(a)
	if g.disabled = !enabled; !enabled {
		g.known.State = records.StateDisabled
		return 0, nil, nil
	}
	g.known.FailingSince = nil
	released, tasks = s.releaseAgent(a)
	return released, tasks, nil
}

// ReleaseEnabled releases the deliveries that were held because their agents were disabled. It skips agents that are
// disabled now, and agents for which except returns true. except may be nil.
func (s *Store) ReleaseEnabled(_ context.Context,
	except func(erc8004.Agent) bool) (released int, tasks []ledger.Task, err error) {
	defer s.lock()()
	for _, r := range s.rows {
		if r.Status == outcome.Held && r.Reason == outcome.AgentDisabled && !s.ensureAgent(r.agent).disabled &&
			(except == nil || !except(r.agent)) {
			n, more := s.releaseAgent(r.agent)
			released, tasks = released+n, append(tasks, more...)
		}
	}
	return released, tasks, nil
}

// releaseAgent releases the deliveries that were held because the agent was disabled. The agent is enabled now.
func (s *Store) releaseAgent(a erc8004.Agent) (released int, tasks []ledger.Task) {
	if g := s.ensureAgent(a); g.known.State == records.StateDisabled {
		g.known.State, g.known.FailingSince = records.StatePending, nil
	}
	ended := s.releaseHeld(len(s.rows), func(r *row) bool { return r.agent == a && r.Reason == outcome.AgentDisabled })
	return len(ended), append(s.dispatchAgents([]erc8004.Agent{a}), ended...)
}

// releaseMended releases the agent's deliveries that are held for the same reason as the delivery of o, if the cause no
// longer exists. The cause of agent_disabled no longer exists if the agent is enabled. The cause of auth_required no
// longer exists if the epoch was raised after the claim c: storing a credential raises it. Enabling the agent or
// storing the credential did not release o's delivery r, because it was not held yet. A lost claim releases nothing.
func (s *Store) releaseMended(r *row, c *ledger.Claim, o ledger.Outcome) []ledger.Task {
	g := s.ensureAgent(r.agent)
	enabled := o.Reason == outcome.AgentDisabled && !o.Elsewhere && !g.disabled
	renewed := o.Reason == outcome.AuthRequired && g.epoch > c.Epoch
	if o.Status != outcome.Held || r.Status != outcome.Held || r.claimNo != c.No || !enabled && !renewed {
		return nil
	}
	return s.releaseHeld(len(s.rows), func(h *row) bool { return h.agent == r.agent && h.Reason == o.Reason })
}
