package memory

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// ReportVerified stores the chains whose events a worker verifies.
func (s *Store) ReportVerified(_ context.Context, chains []uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified = slices.Clone(chains)
	return nil
}

// answerKnown answers a job whose key has a delivery.
func (s *Store) answerKnown(r *row, it store.Intake) store.Acceptance {
	out := store.Acceptance{Verdict: store.Known, ID: r.ID, Key: r.Key, Status: r.Status}
	notFound := r.Status == store.Rejected && r.Reason == reason.EventNotFound && !r.called
	field, differs := it.Job.Conflict(r.job)
	switch {
	case it.Refused != "" || r.Job == nil:
		return out
	case !r.verified && !slices.Contains(s.verified, r.ChainID):
		switch {
		case notFound:
			return s.reopen(r, it)
		case differs:
			out.Verdict, out.Field = store.Conflict, field
		case it.Job.ActionSum() != r.job.ActionSum():
			out.Verdict, out.Field = store.Conflict, "action"
		}
		return out
	}
	hints := r.listHints()
	if r.bound {
		out.Differs = it.Job.Differences(r.job)
	}
	if store.HasOtherAction(hints, it.Job, it.SealedHeaders, it.Source.Trust, it.SameHeaders) {
		out.Verdict, out.Field, out.Differs = store.Conflict, "action", nil
	}
	isEnded := r.Status.Final() || r.mayBeCalled()
	switch {
	case isEnded && !notFound:
		if r.bound && !it.Job.NamesEvent(r.job) {
			r.addHint(hints, it, s)
		}
	case it.Job.EventSum() != r.job.EventSum() || it.Source.Trust > r.source.Trust:
		if r.addHint(hints, it, s) && notFound {
			return s.reopen(r, it)
		}
	}
	return out
}

// listHints returns the hints, including the one that only the row has.
func (r *row) listHints() []store.Hint {
	if len(r.stored) > 0 {
		return r.stored
	}
	return []store.Hint{{Job: r.job, SealedHeaders: r.sealed, Source: r.source, CreatedAt: r.CreatedAt,
		Refuted: r.Status == store.Rejected && r.Reason == reason.EventNotFound}}
}

// addHint adds a job to the hints. A wait for another position ends.
func (r *row) addHint(hints []store.Hint, it store.Intake, s *Store) (added bool) {
	after, added := store.AddHint(hints, store.Hint{Job: it.Job, SealedHeaders: it.SealedHeaders, Source: it.Source, CreatedAt: s.now()})
	if !added {
		return false
	}
	r.hints++
	r.stored = after
	if r.Status == store.Waiting && (r.Reason == reason.NotConfirmed || r.Reason == reason.ChainUnavailable) {
		r.queue(s.now())
		r.Error = ""
	}
	return true
}

// reopen queues a delivery again whose event was not found.
func (s *Store) reopen(r *row, it store.Intake) store.Acceptance {
	r.job, r.sealed, r.source, r.agent, r.bound = it.Job, it.SealedHeaders, it.Source, jobAgent(it.Job), false
	r.Job, _ = json.Marshal(it.Job)
	r.hints++
	r.recheck(s)
	r.fetches, r.accepted = 0, s.now()
	s.reviveRevocation(r)
	return store.Acceptance{Verdict: store.Accepted, ID: r.ID, Key: r.Key, Status: store.Queued}
}

// reviveRevocation queues the revocation of a feedback again that was skipped because the feedback was never delivered.
func (s *Store) reviveRevocation(feedback *row) {
	j := feedback.job
	if j.Kind != job.KindNewFeedback {
		return
	}
	j.Kind = job.KindFeedbackRevoked
	if r := s.byKey[j.Key()]; r != nil && r.Status == store.Skipped && r.Reason == reason.NeverDelivered {
		r.queue(s.now())
		r.Error, r.base, r.accepted = "", r.Attempts, s.now()
	}
}

// recheck queues a delivery for another check.
func (r *row) recheck(s *Store) {
	r.queue(s.now())
	r.Error, r.base = "", r.Attempts
	if r.hasOrder() {
		r.holdsUntil = forever
	}
}

// mayBeCalled reports whether the agent was called, or may have been.
func (r *row) mayBeCalled() bool {
	return r.called || (r.bound || !r.verified) && slices.ContainsFunc(r.history, func(a *store.Attempt) bool { return a.Outcome == "" })
}

// Hints lists the hints of a claimed delivery, by rank.
func (s *Store) Hints(_ context.Context, c *store.Claim) ([]store.Hint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.byID[c.ID].stored), nil
}

// Bind replaces the job of the claimed delivery by the event.
func (s *Store) Bind(_ context.Context, c *store.Claim, b store.Binding) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[c.ID]
	switch {
	case !r.isHeldBy(c):
		return store.ErrFenced
	case r.hints != c.Hints:
		return store.ErrNewHint
	}
	r.job, r.sealed, r.source, r.bound, r.agent = b.Job, b.SealedHeaders, b.Source, true, jobAgent(b.Job)
	r.Job, _ = json.Marshal(b.Job)
	r.IdentityRegistry, r.AgentID = r.agent.Registry, r.agent.ID
	if b.Corrected != nil {
		r.Corrected = b.Corrected
	}
	s.agent(r.agent)
	c.Job, c.SealedHeaders, c.Source, c.Bound = b.Job, b.SealedHeaders, b.Source, true
	return nil
}

// recheckIfNeeded queues the delivery again if a hint arrived after the claim, or if its agent changed.
func (s *Store) recheckIfNeeded(r *row, c *store.Claim, o store.Outcome) bool {
	for i := range r.stored {
		r.stored[i].Refuted = r.stored[i].Refuted || slices.Contains(o.Refuted, r.stored[i].Rank)
	}
	waits := r.Status == store.Waiting && (r.Reason == reason.NotConfirmed || r.Reason == reason.ChainUnavailable)
	missed := r.Status == store.Rejected && r.Reason == reason.EventNotFound
	if !o.Rerouted && (!o.Undecided || r.hints == c.Hints) || !waits && !missed {
		return false
	}
	r.recheck(s)
	return true
}

// endGone retracts the feedback of a delivery whose event is gone, and gives its key to another event.
func (s *Store) endGone(r *row, g store.Gone) {
	if r.job.Kind == job.KindNewFeedback {
		s.acceptOne(store.Intake{Job: r.job.Retraction(r.ID), Source: store.Source{Name: store.SourceChain}})
	}
	if key := r.job.Key(); g.Next != nil && r.Key == key {
		delete(s.byKey, key)
		r.Key += "~" + r.ID.String()
		s.acceptAs(store.Intake{Job: *g.Next, Source: store.Source{Name: store.SourceChain}}, key, job.IDOf(r.Key)).bound = true
	}
}
