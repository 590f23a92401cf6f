package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// observeOutcome keeps what an attempt told of the agent's server.
func (g *agent) observeOutcome(o store.Outcome, now time.Time) {
	k := &g.known
	switch {
	case g.disabled || o.Reason == reason.AgentDisabled:
		k.State = store.StateDisabled
	case o.AgentOK:
		k.State = store.StateConnected
	case o.Reason == reason.AuthRequired:
		k.State = store.StateNeedsAuth
	case o.AgentError != "":
		k.State = store.StateFailed
	case k.State == store.StateDisabled:
		k.State = store.StatePending
	}
	if o.AgentOK {
		k.LastOKAt = &now
	}
	applyObservation(k, o.Endpoint, o.Protocol, o.AgentError, o.ServerInfo, o.Tools, now)
}

// observeProbe takes over what is not empty.
func (g *agent) observeProbe(l store.AgentObservation, now time.Time) {
	if l.State != "" && !g.disabled {
		g.known.State = l.State
	}
	applyObservation(&g.known, l.Endpoint, l.Protocol, l.Error, l.ServerInfo, l.Tools, now)
}

func applyObservation(k *store.AgentRow, endpoint, protocol, fault string, server, tools json.RawMessage,
	now time.Time) {
	k.Endpoint, k.Protocol, k.UpdatedAt = cmp.Or(endpoint, k.Endpoint), cmp.Or(protocol, k.Protocol), now
	if fault != "" {
		k.LastError, k.LastErrorAt = fault, &now
	}
	if len(server) > 0 {
		k.ServerInfo = server
	}
	if len(tools) > 0 {
		k.Tools = tools
	}
}

// ObserveAgent writes down what was learned without a delivery.
func (s *Store) ObserveAgent(_ context.Context, a store.Agent, l store.AgentObservation) error {
	if !slices.Contains([]string{"", store.StateConnected, store.StateNeedsAuth, store.StateFailed}, l.State) {
		return fmt.Errorf("memory: %q is not a state that an agent can be found in", l.State)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent(a).observeProbe(l, s.now())
	return nil
}

// AgentRow reads one agent, but for its counters.
func (s *Store) AgentRow(_ context.Context, a store.Agent) (store.AgentRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.agents[a]
	if g == nil {
		return store.AgentRow{}, store.ErrNotFound
	}
	r := g.known
	r.ChainID, r.IdentityRegistry, r.AgentID = a.ChainID, a.Registry, a.ID
	r.Epoch, r.Enabled, r.Policy = g.epoch, !g.disabled, g.policy
	return r, nil
}
