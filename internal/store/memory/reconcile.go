package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Lead runs do unless another call of Lead is running.
func (s *Store) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	s.mu.Lock()
	taken := s.leading
	s.leading = true
	s.mu.Unlock()
	if taken {
		return false, nil
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leading = false
	}()
	return true, do(ctx)
}

// ExpireLeases ends claims whose leases have expired. With the last attempt of the budget, the delivery becomes dead.
func (s *Store) ExpireLeases(_ context.Context, limit, attempts int) (n, dead int, err error) {
	n = s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status != store.Running || !r.lease.Before(now) {
			return false
		}
		if r.Attempts-r.base >= attempts {
			r.finish(store.Dead, reason.OutcomeUnknown, now)
			dead++
		} else {
			r.holdOthers(r.UpdatedAt.Add(holdTime))
			r.queue(now)
		}
		r.claimNo = s.nextClaim()
		r.Error = "the worker ended before it could record what happened"
		return true
	})
	return n, dead, nil
}

// Expire ends deliveries that are too old, except running ones.
func (s *Store) Expire(_ context.Context, age time.Duration, limit int) (int, error) {
	return s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status.Final() || r.Status == store.Running || !r.accepted.Before(now.Add(-age)) {
			return false
		}
		r.finish(store.Dead, reason.Expired, now)
		return true
	}), nil
}

// Release queues deliveries that were held for a missing RPC URL or Arweave gateway.
func (s *Store) Release(_ context.Context, chains []uint64, gateway bool, limit int) (ended []store.Task, err error) {
	s.changeEach(limit, func(r *row, now time.Time) bool {
		chain := r.Reason == reason.ChainUnconfigured && slices.Contains(chains, r.ChainID)
		if r.Status != store.Held || !chain && !(r.Reason == reason.GatewayUnconfigured && gateway) {
			return false
		}
		ended = append(ended, r.toEnded())
		r.releaseHeld(now)
		return true
	})
	return ended, nil
}

// changeEach changes at most limit rows and counts them.
func (s *Store) changeEach(limit int, change func(*row, time.Time) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, r := range s.rows {
		if n < limit && change(r, now) {
			n++
		}
	}
	return n
}

// Due puts waiting deliveries without a task whose wait is over into their agents' backlogs, and dispatches from these.
func (s *Store) Due(_ context.Context, limit int) (tasks []store.Task, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var agents []store.Agent
	for _, r := range s.rows {
		if len(agents) < limit && r.Status == store.Waiting && r.handed.IsZero() && !r.NextAttemptAt.After(now) {
			r.queue(now)
			agents = append(agents, r.agent)
		}
	}
	return s.dispatch(agents...), len(agents) == limit, nil
}

// Backlog dispatches for agents that have a backlog and a free slot.
func (s *Store) Backlog(_ context.Context, limit int) ([]store.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var agents []store.Agent
	for _, r := range s.rows {
		if len(agents) < limit && r.Status == store.Queued && r.handed.IsZero() && !slices.Contains(agents, r.agent) &&
			s.countDispatched(r.agent) < s.listLine(r.agent)[0].mayDispatch() {
			agents = append(agents, r.agent)
		}
	}
	return s.dispatch(agents...), nil
}

// Overdue lists dispatched deliveries that should have been claimed at least late ago, by id.
func (s *Store) Overdue(_ context.Context, late time.Duration, after uuid.UUID, limit int) ([]store.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.now().Add(-late)
	return s.listTasks(limit, func(r *row) bool {
		return bytes.Compare(r.ID[:], after[:]) > 0 && r.isDispatchedBefore(before) &&
			(r.Status == store.Queued || r.NextAttemptAt.Before(before))
	}), nil
}

// isDispatchedBefore reports whether the delivery has had its present task since before t.
func (r *row) isDispatchedBefore(t time.Time) bool {
	return (r.Status == store.Queued || r.Status == store.Waiting) && !r.handed.IsZero() && r.handed.Before(t)
}

func (s *Store) listTasks(limit int, which func(*row) bool) (tasks []store.Task) {
	for _, r := range s.rows {
		if which(r) {
			tasks = append(tasks, r.toTask())
		}
	}
	slices.SortFunc(tasks, func(a, b store.Task) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return tasks[:min(limit, len(tasks))]
}

// Redispatch replaces task t by a new one. It returns false if the delivery has moved on.
func (s *Store) Redispatch(_ context.Context, t store.Task) (store.Task, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.byID[t.ID]
	if r == nil || r.Dispatch != t.N || !r.isDispatchedBefore(now.Add(1)) {
		return store.Task{}, false, nil
	}
	r.dispatchAgain(now)
	return r.toTask(), true, nil
}

// LostBefore gives new tasks to deliveries that were dispatched before a time.
func (s *Store) LostBefore(_ context.Context, before time.Time, limit int) (tasks []store.Task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, r := range s.rows {
		if len(tasks) < limit && r.isDispatchedBefore(before) {
			r.dispatchAgain(now)
			tasks = append(tasks, r.toTask())
		}
	}
	return tasks, nil
}

func (r *row) dispatchAgain(now time.Time) {
	r.Dispatch++
	r.handed, r.UpdatedAt = now, now
}

// EnsurePartitions does nothing.
func (s *Store) EnsurePartitions(context.Context, int) (int, error) { return 0, nil }

// DropPartitions does nothing.
func (s *Store) DropPartitions(context.Context, time.Duration) (int, error) { return 0, nil }

// DropEvents does nothing.
func (s *Store) DropEvents(context.Context, int) (int, error) { return 0, nil }

// DropAgentHours does nothing.
func (s *Store) DropAgentHours(context.Context, time.Duration, int) (int, error) { return 0, nil }

// Retain does nothing, so that tests can inspect every delivery.
func (s *Store) Retain(context.Context, time.Duration, int) (int, error) { return 0, nil }
