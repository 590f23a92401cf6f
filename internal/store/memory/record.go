package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// Record stores the outcome of the claim's attempt and dispatches the agent's next deliveries.
func (s *Store) Record(_ context.Context, c *store.Claim, o store.Outcome) (store.Recorded, error) {
	if !o.Status.Final() && o.Status != store.Waiting && o.Status != store.Held {
		return store.Recorded{}, fmt.Errorf("memory: %q is not a status that an attempt can end with", o.Status)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordAttempt(c, c.Attempt, c.StartedAt, o)
}

// Adopt records the known outcome of an earlier attempt, and undoes the claim's own attempt.
func (s *Store) Adopt(_ context.Context, c *store.Claim, p store.SpooledOutcome) (store.Recorded, error) {
	if !p.Outcome.Status.Final() && p.Outcome.Status != store.Waiting && p.Outcome.Status != store.Held {
		return store.Recorded{}, fmt.Errorf("memory: %q is not a status that an attempt can end with", p.Outcome.Status)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[c.ID]; r.isHeldBy(c) {
		if !r.isAttemptOpen(p.Attempt, p.StartedAt) {
			return store.Recorded{}, store.ErrStale
		}
		r.takeBack(c.Attempt, c.StartedAt)
		r.Attempts--
		if p.Attempt != r.Attempts {
			p.Outcome.Free = false // later attempts exist: all keep their numbers
		}
	}
	return s.recordAttempt(c, p.Attempt, p.StartedAt, p.Outcome)
}

// recordAttempt completes the attempt number, which began at started, with o, and changes the delivery under the fence
// of c.
func (s *Store) recordAttempt(c *store.Claim, number int, started time.Time, o store.Outcome) (store.Recorded, error) {
	now := s.now()
	r := s.byID[c.ID]
	if r == nil {
		return store.Recorded{}, store.ErrFenced
	}
	fence := r.isHeldBy(c)
	late := !fence && o.Status == store.Delivered && !r.Status.Final() // a late success, the one exception to the fence
	again := !fence && r.claimNo == c.No && r.Status == o.Status && r.Status != store.Queued
	if fence || late {
		s.move(r, o, now)
		if o.Reason == reason.ChainUnavailable || o.Reason == reason.NotConfirmed {
			r.holdOthers(started.Add(unconfirmedHold))
		} else if free := o.Free && !o.Called; free && r.Attempts == 1 && !r.holdsUntil.IsZero() && o.Status != store.Held {
			r.holdsUntil = forever // no attempt is left
		} else if !free || o.Status == store.Held {
			r.holdOthers(started.Add(holdTime))
		}
		s.releaseFollowers(r, now)
		if late {
			r.claimNo = s.nextClaim()
		}
		if o.Free && !o.Called {
			r.Attempts--
			r.takeBack(number, started)
		}
		s.blame(r, c, o)
		if o.Gone != nil {
			s.endGone(r, *o.Gone)
		}
	}
	if fence || late || o.Status == store.Delivered {
		r.completeAttempt(number, started, o)
	}
	if !fence && !late && !again {
		r.called = r.called || o.Called && o.Status == store.Delivered
		return store.Recorded{}, store.ErrFenced
	}
	rec := store.Recorded{Age: now.Sub(r.accepted), Rechecked: fence && s.recheckIfNeeded(r, c, o)}
	if r.NextAttemptAt != nil {
		rec.NextAttemptAt = *r.NextAttemptAt
		if o.Task {
			t := r.toTask()
			rec.Task = &t
		}
	}
	if !o.SkipDispatch && !late {
		rec.Next = s.dispatch(r.agent)
	}
	return rec, nil
}

// move changes the delivery as the outcome says.
func (s *Store) move(r *row, o store.Outcome, now time.Time) {
	switch {
	case o.Status.Final():
		r.finish(o.Status, o.Reason, now)
	case o.Status == store.Held:
		r.queue(now)
		r.Status, r.Reason = store.Held, o.Reason
	default:
		r.queue(now)
		at := now.Add(o.Delay)
		r.Status, r.Reason, r.NextAttemptAt = store.Waiting, o.Reason, &at
		if o.Task {
			r.handed = now
			if o.Anew {
				r.Dispatch++
			}
		}
	}
	r.Error = o.Error
	r.called = r.called || o.Called
	if o.FetchFailed {
		r.fetches++
	}
}

// blame updates the agent from the outcome, and raises its epoch once if a moved endpoint would explain the failure.
func (s *Store) blame(r *row, c *store.Claim, o store.Outcome) {
	if o.EndpointOfJob {
		return
	}
	g := s.agent(r.agent)
	g.observeOutcome(o, s.now())
	switch {
	case o.AgentOK:
		g.raised = neverRaised
	case o.Moved && c.Epoch == g.epoch && g.raised != g.epoch:
		g.epoch++
		g.raised = g.epoch
	}
}

// completeAttempt sets the outcome of an attempt that has none.
func (r *row) completeAttempt(number int, started time.Time, o store.Outcome) {
	for _, a := range r.history {
		if a.Number == number && a.StartedAt.Equal(started) && a.Outcome == "" {
			a.Stage, a.Outcome, a.Reason, a.Error = o.Stage, string(o.Status), o.Reason, o.Error
			a.Arguments, a.Response, a.Protocol = o.Arguments, o.Response, o.Protocol
		}
	}
}

// isAttemptOpen reports whether the attempt exists and has no outcome.
func (r *row) isAttemptOpen(number int, started time.Time) bool {
	return slices.ContainsFunc(r.history, func(a *store.Attempt) bool {
		return a.Number == number && a.StartedAt.Equal(started) && a.Outcome == ""
	})
}

// takeBack deletes the row of an attempt.
func (r *row) takeBack(number int, started time.Time) {
	r.history = slices.DeleteFunc(r.history, func(a *store.Attempt) bool {
		return a.Number == number &&
			a.StartedAt.Equal(started)
	})
}
