package model

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// changeEach calls change for each delivery, until change has returned true for limit deliveries. It returns the agents
// of these deliveries.
func (s *Store) changeEach(limit int, change func(r *row, now time.Time) bool) (agents []erc8004.Agent) {
	now := s.now()
	for _, r := range s.rows {
		if len(agents) < limit && change(r, now) {
			agents = append(agents, r.agent)
		}
	}
	return agents
}

// ExpireLeases ends claims whose leases have expired. Their deliveries return to the backlog. After the last attempt of
// the budget they become dead, because a delivery may crash each worker that runs it.
func (s *Store) ExpireLeases(_ context.Context, limit, attempts int) (n, dead int, err error) {
	defer s.lock()()
	var lost []*row
	s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status != outcome.Running || !r.LeaseUntil.Before(now) {
			return false
		}
		if r.DelaysUntil.Equal(Forever) {
			r.DelaysUntil = r.updated.Add(confirmedDelay)
		}
		r.claimNo = s.drawClaim()
		r.Error = "the worker of attempt " + strconv.Itoa(r.Attempts) + " ended before it could record what happened"
		if lost = append(lost, r); r.Attempts-r.BudgetBase < attempts {
			r.setQueued(now)
		} else {
			r.setStatus(outcome.Dead, outcome.Unknown, now)
			dead++
		}
		return true
	})
	s.releaseNext(s.now(), lost...)
	return len(lost), dead, nil
}

// Expire ends deliveries that are too old, except running ones, whose lease must end first.
func (s *Store) Expire(_ context.Context, age time.Duration, limit int) (int, error) {
	defer s.lock()()
	var ended []*row
	s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status.Final() || r.Status == outcome.Running || !r.AcceptedAt.Before(now.Add(-age)) {
			return false
		}
		r.setStatus(outcome.Dead, outcome.Expired, now)
		ended = append(ended, r)
		return true
	})
	s.releaseNext(s.now(), ended...)
	return len(ended), nil
}

// Due puts deliveries that wait without a task, and whose wait is over, into their agents' backlogs. Then it dispatches
// from these backlogs.
func (s *Store) Due(_ context.Context, limit int) (tasks []ledger.Task, more bool, err error) {
	defer s.lock()()
	agents := s.changeEach(limit, func(r *row, now time.Time) bool {
		isDue := r.Status == outcome.Waiting && r.HandedAt.IsZero() && !r.NextAttemptAt.After(now)
		if isDue {
			r.setQueued(now)
		}
		return isDue
	})
	return s.dispatchAgents(agents), len(agents) == limit, nil
}

// IgnoreOrder dispatches deliveries that wait for another one (behind_earlier) although their agent's order is switched
// off. They wait for no other delivery from now on.
func (s *Store) IgnoreOrder(_ context.Context, limit int) ([]ledger.Task, error) {
	defer s.lock()()
	return s.dispatchAgents(s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status != outcome.Waiting || r.Reason != outcome.BehindEarlier || !r.Ordered || r.isResponse() ||
			s.keepsOrder(r.agent) {
			return false
		}
		r.setQueued(now)
		r.Error, r.Ordered, r.DelaysUntil = "", false, time.Time{}
		return true
	})), nil
}

// Backlog dispatches deliveries of agents that have a backlog and fewer dispatched deliveries than they may have.
func (s *Store) Backlog(_ context.Context, limit int) ([]ledger.Task, error) {
	defer s.lock()()
	var agents []erc8004.Agent
	for _, r := range s.rows {
		if len(agents) < limit && r.isInBacklog() && !slices.Contains(agents, r.agent) &&
			s.countFree(s.listBacklog(r.agent)[0]) > 0 {
			agents = append(agents, r.agent)
		}
	}
	return s.dispatchAgents(agents), nil
}

// Overdue lists the tasks that were due at least the given time ago (late) and are not claimed, sorted by delivery id.
// It lists only tasks whose delivery id is greater than after.
func (s *Store) Overdue(_ context.Context, late time.Duration, after uuid.UUID,
	limit int) (tasks []ledger.Task, err error) {
	defer s.lock()()
	before := s.now().Add(-late)
	for _, r := range s.rows {
		if bytes.Compare(r.id[:], after[:]) > 0 && r.isHandedBefore(before) &&
			(r.Status == outcome.Queued || r.NextAttemptAt.Before(before)) {
			t := r.toTask()
			t.At = time.Time{}
			tasks = append(tasks, t)
		}
	}
	slices.SortFunc(tasks, func(a, b ledger.Task) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return tasks[:min(limit, len(tasks))], nil
}

// isHandedBefore reports whether the delivery got its present task before t, and no worker has claimed it.
func (r *row) isHandedBefore(t time.Time) bool {
	return (r.Status == outcome.Queued || r.Status == outcome.Waiting) && !r.HandedAt.IsZero() && r.HandedAt.Before(t)
}

// Redispatch replaces task t, which Redis lost, by a new one. It returns false if t is no longer the delivery's task.
func (s *Store) Redispatch(_ context.Context, t ledger.Task) (ledger.Task, bool, error) {
	defer s.lock()()
	now, r := s.now(), s.findID(t.ID)
	if r == nil || r.Dispatch != t.N || !r.isHandedBefore(now.Add(1)) {
		return ledger.Task{}, false, nil
	}
	t = r.dispatchAgain(now)
	t.At = time.Time{}
	return t, true, nil
}

// LostBefore gives new tasks to deliveries that were dispatched before Redis lost its data. A waiting delivery keeps
// the end of its wait.
func (s *Store) LostBefore(_ context.Context, before time.Time, limit int) (tasks []ledger.Task, err error) {
	defer s.lock()()
	s.changeEach(limit, func(r *row, now time.Time) bool {
		isLost := r.isHandedBefore(before)
		if isLost {
			tasks = append(tasks, r.dispatchAgain(now))
		}
		return isLost
	})
	return tasks, nil
}

func (r *row) dispatchAgain(now time.Time) ledger.Task {
	r.Dispatch++
	r.HandedAt, r.updated = now, now
	return r.toTask()
}

// Replay queues deliveries again. A final or held one gets a new budget, and waits for no other delivery from now on. A
// waiting one only stops waiting. Delivered and filtered ones need force. left has the reason for each delivery that
// did not change.
func (s *Store) Replay(_ context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, tasks []ledger.Task, err error) {
	defer s.lock()()
	now := s.now()
	return s.moveEach(ids, true, func(r *row) (why string) {
		switch {
		case r.refused:
			return "it has no job"
		case r.Status == outcome.Queued || r.Status == outcome.Running:
			return "it is under way"
		case (r.Status == outcome.Delivered || r.Reason == outcome.Filtered) && !force:
			return "it is delivered or filtered"
		case r.Status != outcome.Waiting:
			r.renew(now)
			r.Replays++
			r.Ordered, r.DelaysUntil = false, time.Time{}
		}
		r.setQueued(now)
		r.Error = ""
		return ""
	})
}

// Cancel ends open deliveries, running ones only with force. The reconciler dispatches the agents' next deliveries.
func (s *Store) Cancel(_ context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, ended []ledger.Task, err error) {
	defer s.lock()()
	now := s.now()
	var cancelled []*row
	defer func() { s.releaseNext(now, cancelled...) }()
	return s.moveEach(ids, false, func(r *row) (why string) {
		switch {
		case r.Status.Final():
			return "it has ended"
		case r.Status == outcome.Running && !force:
			return "it is being delivered"
		case r.Status == outcome.Running:
			r.claimNo = s.drawClaim()
		}
		r.setStatus(outcome.Cancelled, outcome.Operator, now)
		cancelled = append(cancelled, r)
		return ""
	})
}

// moveEach applies change to each delivery. change returns why it changed nothing, or "". moveEach returns the tasks
// that the changed deliveries no longer need. If dispatch is true, it also dispatches from the agents' backlogs and
// returns the new tasks.
func (s *Store) moveEach(ids []uuid.UUID, dispatch bool,
	change func(*row) (why string)) (moved int, left map[uuid.UUID]string, tasks []ledger.Task, err error) {
	left = map[uuid.UUID]string{}
	var agents []erc8004.Agent
	var rows []*row
	for _, id := range ids {
		r := s.findID(id)
		if r == nil {
			left[id] = ledger.NoSuchDelivery
			continue
		}
		s.ensureAgent(r.agent)
		if agents, rows = append(agents, r.agent), append(rows, r); change(r) != "" {
			left[id] = "it did not change"
			continue
		}
		if moved++; r.Dispatch > 0 {
			tasks = append(tasks, r.toEnded())
		}
	}
	if dispatch {
		for _, r := range rows {
			s.reviveRevocation(r)
		}
		tasks = append(s.dispatchAgents(agents), tasks...)
	}
	return moved, left, tasks, nil
}

// Release queues deliveries that were held because an RPC URL or an Arweave gateway was missing.
func (s *Store) Release(_ context.Context, chains []uint64, gateway bool, limit int) ([]ledger.Task, error) {
	defer s.lock()()
	return s.releaseHeld(limit, func(r *row) bool {
		return r.Reason == outcome.ChainUnconfigured && slices.Contains(chains, r.agent.ChainID) ||
			r.Reason == outcome.GatewayUnconfigured && gateway
	}), nil
}

// releaseHeld puts held deliveries that match into the backlog. A released delivery delays later ones of its ordering
// key again (startDelay), unless the agent was called with it. releaseHeld returns the tasks that the deliveries had
// before, marked as no longer needed (ledger.Task.Ended).
func (s *Store) releaseHeld(limit int, matches func(*row) bool) (ended []ledger.Task) {
	s.changeEach(limit, func(r *row, now time.Time) bool {
		if r.Status != outcome.Held || !matches(r) {
			return false
		}
		ended = append(ended, r.toEnded())
		if r.setQueued(now); !r.Called {
			r.startDelay(now)
		}
		return true
	})
	return ended
}

// Lead calls do, unless another call of Lead is running.
func (s *Store) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	if !s.lead.TryLock() {
		return false, nil
	}
	defer s.lead.Unlock()
	return true, do(ctx)
}
