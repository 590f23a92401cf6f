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

// observeOutcome updates the agent's state from the outcome of an attempt.
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
	switch {
	case o.AgentOK:
		k.LastOKAt, k.FailingSince = &now, nil
	case o.AgentError != "" && k.FailingSince == nil:
		k.FailingSince = &now
	}
	if o.Called || o.AgentError != "" {
		k.LastCalledAt = &now
		g.countCall(o, now)
	}
	applyObservation(k, o.Endpoint, o.Protocol, o.AgentError, o.ServerInfo, o.Tools, now)
}

// countCall adds the outcome to the counts of the current hour.
func (g *agent) countCall(o store.Outcome, now time.Time) {
	hour := now.UTC().Truncate(time.Hour)
	if n := len(g.hours); n == 0 || !g.hours[n-1].Hour.Equal(hour) {
		g.hours = append(g.hours, store.AgentHour{Hour: hour})
	}
	g.hours[len(g.hours)-1].Count(o)
}

// AgentStats lists the hours in which calls of an agent were recorded.
func (s *Store) AgentStats(_ context.Context, a store.Agent, since time.Time) (hours []store.AgentHour, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.agents[a]; g != nil {
		hours = slices.DeleteFunc(slices.Clone(g.hours),
			func(h store.AgentHour) bool { return h.Hour.Before(since.UTC().Truncate(time.Hour)) })
	}
	return hours, nil
}

// observeProbe applies the fields of an observation that are not empty.
func (g *agent) observeProbe(l store.AgentObservation, now time.Time) {
	if l.State != "" && !g.disabled {
		g.known.State = l.State
	}
	applyObservation(&g.known, l.Endpoint, l.Protocol, l.Error, l.ServerInfo, l.Tools, now)
}

// applyObservation overwrites the known values with the non-empty arguments.
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

// ObserveAgent stores an observation that was made without a delivery.
func (s *Store) ObserveAgent(_ context.Context, a store.Agent, l store.AgentObservation) error {
	if !slices.Contains([]string{"", store.StateConnected, store.StateNeedsAuth, store.StateFailed}, l.State) {
		return fmt.Errorf("memory: %q is not a state that an agent can be found in", l.State)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent(a).observeProbe(l, s.now())
	return nil
}

// AgentRow reads one agent, without its counters.
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
