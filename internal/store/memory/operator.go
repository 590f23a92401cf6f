package memory

import (
	"context"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Replay queues deliveries again with a new budget. It returns the reason for each one that it left unchanged.
func (s *Store) Replay(_ context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, tasks []store.Task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left = map[uuid.UUID]string{}
	now := s.now()
	var agents []store.Agent
	var ended []store.Task
	for _, id := range ids {
		r := s.byID[id]
		switch {
		case r == nil:
			left[id] = "there is no such delivery"
			continue
		case r.Job == nil:
			left[id] = "its job was deleted"
			continue
		case r.Status == store.Queued || r.Status == store.Running:
			left[id] = "it is under way"
			continue
		case r.Status == store.Delivered && !force:
			left[id] = "it is delivered"
			continue
		case r.Status != store.Waiting:
			r.accepted, r.fetches, r.base = now, 0, r.Attempts
			r.replays++
		}
		if r.Dispatch > 0 {
			ended = append(ended, r.toEnded())
		}
		r.queue(now)
		r.Error = ""
		s.reviveRevocation(r)
		agents = append(agents, r.agent)
		moved++
	}
	return moved, left, append(s.dispatch(agents...), ended...), nil
}

// Cancel ends deliveries; running ones only with force.
func (s *Store) Cancel(_ context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, ended []store.Task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left = map[uuid.UUID]string{}
	now := s.now()
	for _, id := range ids {
		r := s.byID[id]
		switch {
		case r == nil:
			left[id] = "there is no such delivery"
			continue
		case r.Status.Final():
			left[id] = "it has ended"
			continue
		case r.Status == store.Running && !force:
			left[id] = "it is being delivered"
			continue
		case r.Status == store.Running:
			r.claimNo = s.nextClaim()
		}
		r.finish(store.Cancelled, reason.Operator, now)
		if r.Dispatch > 0 {
			ended = append(ended, r.toEnded())
		}
		moved++
	}
	return moved, left, ended, nil
}

// EnableAgent enables or disables an agent. Enabling releases the deliveries that were held because it was disabled.
func (s *Store) EnableAgent(_ context.Context, a store.Agent,
	enabled bool) (released int, tasks []store.Task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.agent(a)
	g.disabled = !enabled
	if !enabled {
		g.known.State = store.StateDisabled
		return 0, nil, nil
	}
	g.known.FailingSince = nil
	released, tasks = s.releaseAgent(a)
	return released, tasks, nil
}

// releaseAgent releases the deliveries that were held because the agent was disabled. The agent is enabled now.
func (s *Store) releaseAgent(a store.Agent) (released int, tasks []store.Task) {
	if g := s.agent(a); g.known.State == store.StateDisabled {
		g.known.State, g.known.FailingSince = store.StatePending, nil
	}
	now := s.now()
	var ended []store.Task
	for _, r := range s.rows {
		if r.agent == a && r.Status == store.Held && r.Reason == reason.AgentDisabled {
			r.releaseHeld(now)
			ended = append(ended, r.toEnded())
		}
	}
	return len(ended), append(s.dispatch(a), ended...)
}

// ReleaseEnabled releases the deliveries that were held because their agents were disabled, for all agents that are
// enabled now, unless except returns true for them.
func (s *Store) ReleaseEnabled(_ context.Context,
	except func(store.Agent) bool) (released int, tasks []store.Task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.Status != store.Held || r.Reason != reason.AgentDisabled || s.agent(r.agent).disabled || except != nil &&
			except(r.agent) {
			continue
		}
		n, more := s.releaseAgent(r.agent)
		released, tasks = released+n, append(tasks, more...)
	}
	return released, tasks, nil
}

// SetPolicy merges p into the agent's policy; empty fields change nothing.
func (s *Store) SetPolicy(_ context.Context, a store.Agent, p store.Policy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.OnUnknown != "" {
		s.agent(a).policy.OnUnknown = p.OnUnknown
	}
	if p.Order != "" {
		s.agent(a).policy.Order = p.Order
	}
	if p.Preferences != "" {
		s.agent(a).policy.Preferences = p.Preferences
	}
	return nil
}
