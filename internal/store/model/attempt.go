package model

import (
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// clockTolerance is how long before the end of its wait a delivery may be claimed, as in the Postgres store.
const clockTolerance = time.Second

// Claim claims the delivery with this id for its newest task, whose Task.N must be n, and begins an attempt. A
// delivery that waited takes the turn of its ordering key, or returns to the backlog if another one goes first or too
// many are dispatched.
func (s *Store) Claim(_ context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error) {
	defer s.lock()()
	now, r := s.now(), s.findID(id)
	if r == nil || n < 1 || r.Dispatch != n || r.HandedAt.IsZero() ||
		r.Status != outcome.Waiting && r.Status != outcome.Queued {
		return nil, nil
	}
	if r.Status == outcome.Waiting {
		switch isFull := s.countFree(r) <= 0 || r.isResponse() && r.Ordered && s.countFreeResponses(r.agent) <= 0; {
		case r.NextAttemptAt.After(now.Add(clockTolerance)):
			return nil, &ledger.EarlyError{Left: r.NextAttemptAt.Sub(now), Reason: r.Reason, Text: r.Error}
		case isFull || !s.decideDispatch(r, now).IsZero():
			r.setQueued(now)
			return nil, nil
		}
		r.Turn = r.takesTurn()
	}
	return s.startAttempt(r, now, lease), nil
}

// startAttempt counts the attempt and stores it before the call, so that a process that dies leaves a trace.
func (s *Store) startAttempt(r *row, now time.Time, lease time.Duration) *ledger.Claim {
	unfinished, wasCalled, g := r.lastUnfinished(), r.mayHaveBeenCalled(), s.ensureAgent(r.agent)
	r.Status, r.Reason, r.NextAttemptAt, r.updated = outcome.Running, "", time.Time{}, now
	if delay := now.Add(uncheckedDelay); r.claimNo == 0 && !r.DelaysUntil.IsZero() && r.DelaysUntil.Before(delay) {
		r.DelaysUntil = delay
	}
	r.claimNo, r.LeaseUntil = s.drawClaim(), now.Add(lease)
	r.Attempts++
	r.History = append(r.History, ledger.Attempt{Number: r.Attempts, StartedAt: now, Stage: "claim"})
	return &ledger.Claim{ID: r.id, N: r.Dispatch, No: r.claimNo, Attempt: r.Attempts, StartedAt: now,
		LeaseUntil: r.LeaseUntil, Key: r.Key, Job: r.job, SealedHeaders: r.sealed, CreatedAt: r.created,
		Called: wasCalled, Source: r.source, Bound: r.Bound, Verified: r.Verified, Hints: r.Hints,
		Corrected: r.corrected, Epoch: g.epoch, Enabled: !g.disabled, FetchFailures: r.FetchFailures,
		Budget: max(r.Attempts-r.BudgetBase, 1), Unfinished: unfinished > 0,
		InDoubt: !r.isUnchecked() && unfinished > r.BudgetBase,
		Replay:  r.Replays > 0, Policy: g.policy, OwnPolicy: g.own, Protocol: g.known.Protocol, Traceparent: r.parent,
		Succeeded: g.known.LastOKAt != nil && now.Sub(*g.known.LastOKAt) < ledger.RecentSuccess,
		AheadOf:   s.findOvertaken(r, now), MayCall: r.mayCall(), Kind: string(r.job.Kind), RowAgent: r.agent}
}

// isClaimedBy reports whether the claim is valid: the delivery is running, and the claim is its newest one.
func (r *row) isClaimedBy(c *ledger.Claim) bool {
	return r != nil && r.claimNo == c.No && r.Status == outcome.Running
}

// Extend sets the end of a valid claim's lease to now plus d, if the lease has not expired.
func (s *Store) Extend(_ context.Context, c *ledger.Claim, d time.Duration) error {
	defer s.lock()()
	now, r := s.now(), s.findID(c.ID)
	if !r.isClaimedBy(c) || !r.LeaseUntil.After(now) {
		return ledger.ErrFenced
	}
	r.LeaseUntil, r.updated = now.Add(d), now
	c.LeaseUntil = r.LeaseUntil
	return nil
}

// Hints lists the hints of a claimed delivery, by rank.
func (s *Store) Hints(_ context.Context, c *ledger.Claim) ([]ledger.Hint, error) {
	defer s.lock()()
	return slices.Clone(s.findID(c.ID).hints), nil
}

// Bind replaces the job of the claimed delivery by the event that a check read. The delivery takes the turn of its
// ordering key, if no other delivery goes first. Bind returns ErrNewHint if a hint arrived after the claim.
func (s *Store) Bind(_ context.Context, c *ledger.Claim, b ledger.Binding) error {
	defer s.lock()()
	now, r := s.now(), s.findID(c.ID)
	switch {
	case !r.isClaimedBy(c):
		return ledger.ErrFenced
	case r.Hints != c.Hints:
		c.RowAgent = r.agent
		return ledger.ErrNewHint
	}
	wasBound := r.Bound
	if ledger.AgentOf(b.Job) != r.agent { // to the former agent, the delivery has ended
		r.Status = outcome.Cancelled
		s.releaseNext(now, r)
		r.Status = outcome.Running
	}
	s.setJob(r, b.Job, b.SealedHeaders, b.Source)
	r.Bound, r.updated = true, now
	if b.Corrected != nil {
		r.corrected = b.Corrected
	}
	if !wasBound {
		r.startDelay(now)
	}
	r.Turn = r.Turn || r.takesTurn() && s.decideWait(r, now).IsZero()
	c.Job, c.SealedHeaders, c.Source, c.Bound = b.Job, b.SealedHeaders, b.Source, true
	c.MayCall, c.Corrected, c.RowAgent = r.mayCall(), r.corrected, r.agent
	return nil
}

// Record stores the outcome of the claim's attempt and dispatches the agent's next deliveries.
func (s *Store) Record(_ context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
	defer s.lock()()
	return s.recordAttempt(c, c.Attempt, c.StartedAt, o)
}

// Adopt records the spooled outcome of an earlier attempt that has no outcome in the store, and deletes the claim's own
// attempt. If the earlier attempt does not count (Outcome.Free), it is deleted too. But it stays if another attempt is
// between the two, because that attempt keeps its number.
func (s *Store) Adopt(_ context.Context, c *ledger.Claim, p ledger.SpooledOutcome) (ledger.Recorded, error) {
	defer s.lock()()
	if r := s.findID(c.ID); r.isClaimedBy(c) {
		if r.findOpenAttempt(p.Attempt, p.StartedAt) == nil {
			return ledger.Recorded{}, ledger.ErrStale
		}
		r.undoAttempt(c.Attempt, c.StartedAt)
		p.Outcome.Free = p.Outcome.Free && p.Attempt == r.Attempts
	}
	return s.recordAttempt(p.EarlierClaim(c), p.Attempt, p.StartedAt, p.Outcome)
}

// recordAttempt completes an attempt and changes the delivery, if the claim c is valid. A success counts also if the
// claim is lost: it completes its attempt, and it ends the delivery if the delivery has not ended. Recording the same
// status again is harmless.
func (s *Store) recordAttempt(c *ledger.Claim, number int, started time.Time,
	o ledger.Outcome) (ledger.Recorded, error) {
	if err := o.CheckStatus(); err != nil {
		return ledger.Recorded{}, err
	}
	now, r := s.now(), s.findID(c.ID)
	if r == nil {
		return ledger.Recorded{}, ledger.ErrFenced
	}
	valid := r.isClaimedBy(c)
	late := !valid && o.Status == outcome.Delivered && !r.Status.Final()
	again := !valid && r.claimNo == c.No && r.Status == o.Status
	var rec ledger.Recorded
	if valid || late {
		rec.Rechecked = s.applyOutcome(r, c, o, number, started)
	}
	if a := r.findOpenAttempt(number, started); a != nil && (valid || late || o.Status == outcome.Delivered) {
		a.Stage, a.Outcome, a.Reason, a.Error = o.Stage, string(o.Status), o.Reason, o.Error
		a.Arguments, a.Response, a.Protocol = o.Arguments, o.Response, o.Protocol
	}
	if valid && o.Gone != nil {
		s.endGone(r, *o.Gone)
	}
	ended := s.releaseMended(r, c, o)
	for i := range r.hints {
		r.hints[i].Refuted = r.hints[i].Refuted || slices.Contains(o.Refuted, r.hints[i].Rank)
	}
	if !valid && !late && !again {
		r.Called = r.Called || o.Called && o.Status == outcome.Delivered
		return ledger.Recorded{}, ledger.ErrFenced
	}
	rec.Age, rec.NextAttemptAt = now.Sub(r.AcceptedAt), r.NextAttemptAt
	if !r.NextAttemptAt.IsZero() && o.Task {
		t := r.toTask()
		t.Attempts = max(number, 1)
		rec.Task = &t
	}
	wasReleased := slices.ContainsFunc(ended, func(t ledger.Task) bool { return t.ID == r.id })
	if (valid || wasReleased) && !o.SkipDispatch {
		rec.Next, _ = s.dispatchRound(c.Agent())
	}
	rec.Next = append(rec.Next, ended...)
	return rec, nil
}

// applyOutcome changes the delivery and its agent, and releases deliveries that waited for this one. A free attempt
// without a call is undone, unless its claim is lost. applyOutcome reports whether the delivery was queued again at
// once (recheckRow) and so has not ended.
func (s *Store) applyOutcome(r *row, c *ledger.Claim, o ledger.Outcome, number int,
	started time.Time) (rechecked bool) {
	now := s.now()
	valid := r.isClaimedBy(c)
	if !valid {
		r.claimNo = s.drawClaim()
	}
	r.setStatus(o.Status, o.Reason, now)
	if o.Status == outcome.Waiting {
		if r.NextAttemptAt = now.Add(o.Delay); o.Task {
			r.HandedAt = now
		}
		if o.Task && o.Anew {
			r.Dispatch++
		}
	}
	r.Error, r.Called = o.Error, r.Called || o.Called
	if o.FetchFailed {
		r.FetchFailures++
	}
	r.endDelay(o, started)
	if valid && o.Free && !o.Called {
		r.undoAttempt(number, started)
	}
	rechecked = valid && s.recheckRow(r, c, o)
	s.releaseNext(now, r)
	if !rechecked {
		s.observeOutcome(r.agent, c, o)
	}
	return rechecked
}

// recheckRow returns the delivery to the backlog at once in three cases: a hint arrived after the claim, Bind changed
// the delivery's agent or ordering key, or the delivery did not get the turn. A delivery with the outcome
// behind_earlier keeps its budget of attempts and its DelaysUntil. Any other delivery gets a new budget, and its
// DelaysUntil is computed again (startDelay).
func (s *Store) recheckRow(r *row, c *ledger.Claim, o ledger.Outcome) bool {
	notFound := r.Status == outcome.Rejected && r.Reason == outcome.EventNotFound
	behind := r.Status == outcome.Waiting && r.Reason == outcome.BehindEarlier
	asked := o.Rerouted || o.NoTurn || o.Undecided && r.Hints != c.Hints
	if !asked || !notFound && !behind && !r.waitsForChain() {
		return false
	}
	r.setQueued(s.now())
	if r.Error = ""; !behind {
		r.BudgetBase = r.Attempts
		r.startDelay(s.now())
	}
	return true
}

// findOpenAttempt returns the attempt if it has no outcome yet, else nil.
func (r *row) findOpenAttempt(number int, started time.Time) *ledger.Attempt {
	for i, a := range r.History {
		if a.Number == number && a.StartedAt.Equal(started) && a.Outcome == "" {
			return &r.History[i]
		}
	}
	return nil
}

// undoAttempt deletes an attempt and subtracts it from the count.
func (r *row) undoAttempt(number int, started time.Time) {
	r.Attempts--
	r.History = slices.DeleteFunc(r.History, func(a ledger.Attempt) bool {
		return a.Number == number && a.StartedAt.Equal(started)
	})
}

// endGone is called for a delivery whose event is no longer on the chain. If the event is a feedback and the agent was
// or may have been called, endGone inserts a retraction. If another event has the key now (g.Next), endGone gives the
// key to a new delivery of that event.
func (s *Store) endGone(r *row, g ledger.Gone) {
	if r.job.Kind == job.KindNewFeedback && r.mayHaveBeenCalled() {
		retraction := ledger.Intake{Job: r.job.Retraction(r.id), Source: ledger.Source{Name: ledger.SourceChain}}
		s.acceptIntakes([]ledger.Intake{retraction}, true)
	}
	if key := r.job.Key(); g.Next != nil && r.Key == key {
		r.Key += "~" + r.id.String()
		next := ledger.Intake{Job: *g.Next, Source: ledger.Source{Name: ledger.SourceChain}}
		s.insertRows([]*row{s.newRow(ledger.AdoptAction(next, r.listHints()), key, job.IDOf(r.Key), true)})
	}
}
