package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// ReportVerified replaces the list of the chains whose events workers verify.
func (s *Store) ReportVerified(_ context.Context, chains []uint64) error {
	defer s.lock()()
	s.verified = slices.Clone(chains)
	return nil
}

// Accept stores jobs as deliveries and dispatches as many as ledger.MaxDispatchedPerAgent allows.
func (s *Store) Accept(_ context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error) {
	if len(in) > ledger.MaxAccept {
		return nil, nil, fmt.Errorf("model: at most %d jobs at once", ledger.MaxAccept)
	}
	defer s.lock()()
	out, tasks := s.acceptIntakes(in, false)
	return out, tasks, nil
}

// accept inserts deliveries for the jobs with new keys, and answers the other jobs. read reports whether the jobs were
// read from the chain.
func (s *Store) acceptIntakes(in []ledger.Intake, read bool) (out []ledger.Acceptance, tasks []ledger.Task) {
	out = make([]ledger.Acceptance, len(in))
	var fresh []*row
	raised := map[erc8004.Agent]bool{}
	for i, it := range in {
		key := cmp.Or(it.Key, it.Job.Key())
		if it.Refused == "" {
			s.ensureAgent(ledger.AgentOf(it.Job))
		}
		if it.Job.Kind == job.KindAgentUpdated && it.Refused == "" {
			if a := ledger.AgentOf(it.Job); !raised[a] {
				s.ensureAgent(a).epoch++
				raised[a] = true
			}
			out[i].Verdict = ledger.Refreshed
		} else if s.findKey(key) == nil && !slices.ContainsFunc(fresh, func(r *row) bool { return r.Key == key }) {
			fresh = append(fresh, s.newRow(it, key, job.IDOf(key), read))
			out[i] = ledger.Acceptance{Verdict: ledger.Accepted, ID: job.IDOf(key), Key: key}
		}
	}
	tasks = s.insertRows(fresh)
	for i, it := range in {
		switch r := s.findKey(cmp.Or(it.Key, it.Job.Key())); out[i].Verdict {
		case ledger.Accepted:
			out[i].Status = r.Status
		case "":
			out[i] = s.answerKnown(r, it)
		}
	}
	var agents []erc8004.Agent
	for i, it := range in { // an update of an agent, or a new delivery that waits or has a task, needs no dispatch
		settled := out[i].Verdict == ledger.Refreshed || out[i].Verdict == ledger.Accepted &&
			(out[i].Status == outcome.Waiting || out[i].Status == outcome.Skipped || s.findID(out[i].ID).isDispatched())
		if it.Refused == "" && !settled {
			agents = append(agents, ledger.AgentOf(it.Job))
		}
	}
	return out, append(tasks, s.dispatchAgents(agents)...)
}

func (s *Store) newRow(it ledger.Intake, key string, id uuid.UUID, read bool) *row {
	now, a := s.now(), ledger.AgentOf(it.Job)
	s.seq++
	r := &row{id: id, seq: s.seq, agent: a, job: it.Job, sealed: it.SealedHeaders, source: it.Source,
		parent: it.Traceparent, created: now,
		State: State{Key: key, IdentityRegistry: a.Registry, AgentID: a.ID, Bulk: it.Bulk, Bound: read, AcceptedAt: now,
			Verified: slices.Contains(s.verified, a.ChainID)}}
	if r.setQueued(now); it.Refused != "" {
		r.setStatus(outcome.Rejected, outcome.InvalidJob, now)
		r.Error, r.received, r.refused = it.Refused, it.Received, true
		return r
	}
	r.Ordered = r.isResponse() || s.keepsOrder(a)
	if it.Filtered != "" && len(s.ensureAgent(a).policy.Filters) == 0 {
		r.setStatus(outcome.Skipped, outcome.Filtered, now)
		r.Error = it.Filtered
		return r
	}
	r.startDelay(now)
	return r
}

// insertRows stores new deliveries. Those that must wait for another delivery wait outside the backlog (setAside). It
// dispatches the others, as far as the agent's limit allows, if no older delivery is in the agent's backlog.
func (s *Store) insertRows(fresh []*row) (tasks []ledger.Task) {
	now := s.now()
	behind, responses := map[*row]bool{}, map[erc8004.Agent]int{}
	for _, r := range fresh {
		behind[r] = s.find(func(o *row) bool {
			return o.agent == r.agent && o.isInBacklog() && (!o.Bulk || r.Bulk)
		}) != nil
		wait := s.decideDispatch(r, now)
		for _, o := range fresh {
			goesFirst := o.isMateOf(r) && !o.Status.Final() &&
				(r.takesTurn() || r.job.Kind == job.KindFeedbackRevoked) &&
				compareOrder(o, r) < 0
			if r.Ordered && !o.Status.Final() && o.isFeedbackOf(r) || goesFirst && !r.isUnchecked() {
				wait = now.AddDate(10, 0, 0)
				break
			} else if goesFirst {
				wait = now.Add(uncheckedDelay)
			}
		}
		switch {
		case r.Status.Final():
		case !wait.IsZero():
			r.setAside(wait, false, now)
		case r.isResponse() && responses[r.agent] >= s.countFreeResponses(r.agent):
			r.setAside(now.AddDate(10, 0, 0), true, now)
		case r.isResponse():
			responses[r.agent]++
		}
	}
	s.rows = append(s.rows, fresh...)
	for _, r := range fresh {
		if r.isInBacklog() && !behind[r] && s.countFree(r) > 0 {
			r.Turn, r.Dispatch, r.HandedAt = r.takesTurn(), 1, now
			tasks = append(tasks, r.toTask())
		}
	}
	return tasks
}

// mayReopen reports whether the delivery ended because its event was missing, so that another job can queue it again.
func (r *row) mayReopen() bool {
	return r.Status == outcome.Rejected && r.Reason == outcome.EventNotFound ||
		r.Status == outcome.Cancelled && r.Reason == outcome.Reorg
}

// mayHaveBeenCalled reports whether the agent was called with the delivery, or may have been called by an attempt
// without an outcome.
func (r *row) mayHaveBeenCalled() bool {
	return r.Called || (r.Bound || !r.Verified) && r.lastUnfinished() > 0
}

// lastUnfinished returns the number of the last attempt without an outcome, or 0.
func (r *row) lastUnfinished() (number int) {
	for _, a := range r.History {
		if a.Outcome == "" {
			number = max(number, a.Number)
		}
	}
	return number
}

// answerKnown answers a job whose key the delivery r already has. If r ended because its event was missing, the job may
// queue r again. If workers verify r's event, the job may become a hint, so that a worker looks for the event at the
// position that the job names. If workers do not verify r's event, r keeps its own job, and a job that differs from it
// is a conflict.
func (s *Store) answerKnown(r *row, it ledger.Intake) ledger.Acceptance {
	out := ledger.Acceptance{Verdict: ledger.Known, ID: r.id, Key: r.Key, Status: r.Status}
	switch isReopened := !r.mayHaveBeenCalled() && (r.mayReopen() || r.refused); {
	case it.Refused != "", r.refused && !isReopened:
		return out
	case r.refused, isReopened && !s.isVerified(r):
		return s.reopenRow(r, it, false)
	case !s.isVerified(r):
		if field, differs := it.Job.Conflict(r.job); differs {
			out.Verdict, out.Field, out.Stored = ledger.Conflict, field, r.job.ContentValue(field)
		} else if it.Job.ActionSum() != r.job.ActionSum() ||
			!ledger.SameHeaders(it.SealedHeaders, r.sealed, it.SameHeaders) {
			out.Verdict, out.Field = ledger.Conflict, "action"
		}
		return out
	case r.job.Retracts != "": // the ledger made the job of a retraction, so no other job changes it
		return out
	}
	if r.Bound {
		out.Differs = it.Job.Differences(r.job)
	}
	if ledger.HasOtherAction(r.listHints(), it.Job, it.SealedHeaders, it.Source.Trust, it.SameHeaders) {
		out.Verdict, out.Field, out.Differs = ledger.Conflict, "action", nil
	}
	switch {
	case r.mayReopen() && !r.mayHaveBeenCalled():
		wasNotFound := r.Reason == outcome.EventNotFound
		if added := s.addHint(r, it); added || !wasNotFound {
			return s.reopenRow(r, it, false)
		}
	case r.Status.Final() || r.mayHaveBeenCalled(): // the hint makes a worker read the event again
		switch {
		case !r.Bound:
		case !it.Job.NamesEvent(r.job):
			s.addHint(r, it)
		case r.mayReopen() || s.mayKnowRetraction(r):
			s.renewHint(r)
		}
	case it.Job.EventSum() != r.job.EventSum() || it.Source.Trust > r.source.Trust:
		s.addHint(r, it)
	}
	return out
}

// isVerified reports whether workers verify the delivery's event: they verified its chain at acceptance, or do so now.
func (s *Store) isVerified(r *row) bool {
	return r.Verified || slices.Contains(s.verified, r.agent.ChainID)
}

// toHint returns the delivery's own job as a hint.
func (r *row) toHint() ledger.Hint {
	return ledger.Hint{Job: r.job, SealedHeaders: r.sealed, Source: r.source, CreatedAt: r.created,
		Refuted: r.Status == outcome.Rejected && r.Reason == outcome.EventNotFound}
}

// listHints returns the stored hints. If none is stored, the delivery's own job is the only hint; it is no hint if the
// chain follower made it.
func (r *row) listHints() []ledger.Hint {
	if len(r.hints) > 0 || r.Bound && r.source.Trust == ledger.TrustChain {
		return r.hints
	}
	return []ledger.Hint{r.toHint()}
}

// addHint adds a job to the hints, and ends a wait for the chain, so that the job's position is checked at once.
func (s *Store) addHint(r *row, it ledger.Intake) (added bool) {
	before := r.listHints()
	after, added := ledger.AddHint(before, ledger.Hint{Job: it.Job, SealedHeaders: it.SealedHeaders, Source: it.Source,
		CreatedAt: s.now()})
	if !added {
		return false
	}
	if r.Hints++; len(r.hints) == 0 && len(after) > 1 {
		r.Hints++ // the delivery's own job is stored as a hint too
	}
	r.hints = after
	if r.waitsForChain() {
		r.setQueued(s.now())
		r.Error = ""
	}
	return true
}

// mayKnowRetraction reports whether the agent was or may have been called with a retraction of the feedback r.
func (s *Store) mayKnowRetraction(r *row) bool {
	return r.mayHaveBeenCalled() && r.job.Kind == job.KindNewFeedback && s.find(func(o *row) bool {
		return o.mayHaveBeenCalled() && o.job.Retracts == r.id.String() &&
			strings.HasPrefix(o.Key, r.job.Retraction(r.id).Key())
	}) != nil
}

// renewHint requests a review of r, which the model does not make: the newest hint counts as new. If r has no hint, its
// own job becomes one.
func (s *Store) renewHint(r *row) {
	if len(r.hints) == 0 {
		r.hints = []ledger.Hint{{Job: r.job, SealedHeaders: r.sealed, Source: r.source, CreatedAt: s.now()}}
		return
	}
	newest := &r.hints[len(r.hints)-1]
	newest.Rank++
	newest.CreatedAt = s.now()
}

// waitsForChain reports whether the delivery waits because its event is not confirmed or no node answers.
func (r *row) waitsForChain() bool {
	return r.Status == outcome.Waiting && (r.Reason == outcome.NotConfirmed || r.Reason == outcome.ChainUnavailable)
}

// setJob replaces the delivery's job, and thereby its agent and ordering key.
func (s *Store) setJob(r *row, j job.Job, sealed []byte, source ledger.Source) {
	r.job, r.sealed, r.source, r.agent = j, sealed, source, ledger.AgentOf(j)
	r.IdentityRegistry, r.AgentID = r.agent.Registry, r.agent.ID
	s.ensureAgent(r.agent)
}

// reopenRow queues an ended delivery again with another job: its event is back, or may be at the position that the job
// names.
func (s *Store) reopenRow(r *row, it ledger.Intake, read bool) ledger.Acceptance {
	now := s.now()
	s.setJob(r, it.Job, it.SealedHeaders, it.Source)
	r.Bound, r.refused, r.Error = read, false, ""
	r.Hints++
	r.renew(now)
	r.setQueued(now)
	r.startDelay(now)
	s.reviveRevocation(r)
	return ledger.Acceptance{Verdict: ledger.Accepted, ID: r.id, Key: r.Key, Status: outcome.Queued}
}

// reviveRevocation queues the revocation of an open feedback again, if it was skipped because the feedback was never
// delivered: now the feedback may be called.
func (s *Store) reviveRevocation(feedback *row) {
	j := feedback.job
	if j.Kind != job.KindNewFeedback || feedback.Status.Final() {
		return
	}
	j.Kind = job.KindFeedbackRevoked
	if r := s.findKey(j.Key()); r != nil && r.Status == outcome.Skipped && r.Reason == outcome.NeverDelivered {
		r.setQueued(s.now())
		r.Error, r.BudgetBase, r.AcceptedAt = "", r.Attempts, s.now()
	}
}
