package model

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

const (
	// How long a delivery delays later ones of its ordering key (DelaysUntil).
	uncheckedDelay = 10 * time.Second // from its acceptance and from its first claim, if its event was not checked yet
	pendingDelay   = 30 * time.Second // from its acceptance, if a check found its event not confirmed yet
	confirmedDelay = 60 * time.Second // from the first claim that came past its check

	// recheckTime is about ten years. A delivery that waits until another one ends has a wait of that length.
	recheckTime = 10 * 365 * 24 * time.Hour

	// otherAgentWait is the wait of a delivery whose feedback is listed under another agent.
	otherAgentWait = 10 * time.Second

	maxResponses = 2  // an agent has at most that many responses among its dispatched deliveries
	maxRounds    = 32 // dispatch calls dispatchRound at most that many times for an agent
)

// isUnchecked reports whether workers verify the delivery's event and have not read it from the chain yet.
func (r *row) isUnchecked() bool { return r.Verified && !r.Bound }

func (r *row) isResponse() bool { return r.job.Kind == job.KindResponseAppended }

// hasTurn reports whether the delivery has the turn of its ordering key. The turn ends when the delivery is no longer
// dispatched or running.
func (r *row) hasTurn() bool { return r.Turn && r.isOut() }

// mayCall reports whether a claim of the delivery may call the agent. Any other claim is for the check only.
func (r *row) mayCall() bool { return r.Turn || !r.Ordered || r.isResponse() }

// takesTurn reports whether a dispatch or a claim gives the delivery the turn. A delivery whose event is not checked
// yet (isUnchecked) gets no turn, because its claim is for the check only. Responses need no turn.
func (r *row) takesTurn() bool { return r.Ordered && !r.isResponse() && !r.isUnchecked() }

// isMateOf reports whether r and o are mates: two deliveries of the same ordering key. Responses have no mates.
func (r *row) isMateOf(o *row) bool {
	return r != o && r.Ordered && o.Ordered && !r.isResponse() && !o.isResponse() && r.agent == o.agent &&
		r.job.OrderKey() == o.job.OrderKey()
}

// isFeedbackOf reports whether r is a feedback, and o its revocation or a response to it.
func (r *row) isFeedbackOf(o *row) bool {
	return r.job.Kind == job.KindNewFeedback &&
		(o.isResponse() || o.job.Kind == job.KindFeedbackRevoked && !o.job.IsRetraction()) &&
		r.agent == o.agent && r.job.OrderKey() == o.job.OrderKey() && r.job.OrderSeq() == o.job.OrderSeq()
}

// compareOrder compares two deliveries of the same ordering key by the order in which they are called: by OrderSeq
// (the feedback index, or a validation's block number), a feedback before its revocation, and the older one first. Of
// two responses, the older one is first.
func compareOrder(r, o *row) int {
	if r.isResponse() && o.isResponse() {
		return cmp.Compare(r.seq, o.seq)
	}
	return cmp.Or(cmp.Compare(r.job.OrderSeq(), o.job.OrderSeq()), cmp.Compare(o.job.Kind, r.job.Kind),
		cmp.Compare(r.seq, o.seq))
}

// startDelay sets until when a delivery that is accepted now delays later ones (DelaysUntil). Responses and revocations
// delay none. A retraction has the kind of a revocation, but it delays later ones if it is bound.
func (r *row) startDelay(now time.Time) {
	r.DelaysUntil = time.Time{}
	switch {
	case !r.Ordered || r.isResponse() || r.job.Kind == job.KindFeedbackRevoked && !(r.Bound && r.job.IsRetraction()):
	case r.isUnchecked():
		r.DelaysUntil = now.Add(uncheckedDelay)
	default:
		r.DelaysUntil = Forever
	}
}

// endDelay shortens DelaysUntil after an attempt. A held delivery then delays none. An unconfirmed delivery delays
// later ones until 30 s after its acceptance; a confirmed one, until 60 s after the first claim that came past its
// check. A claim that waits for an earlier delivery does not come past it. So each of several failing deliveries gets
// its 60 s.
func (r *row) endDelay(o ledger.Outcome, started time.Time) {
	switch {
	case o.Status == outcome.Held:
		r.DelaysUntil = time.Time{}
	case r.DelaysUntil.IsZero():
	case o.Reason == outcome.NotConfirmed && r.isUnchecked():
		r.DelaysUntil = r.AcceptedAt.Add(pendingDelay)
	case r.DelaysUntil.Equal(Forever) && (o.Called || !o.Free || !isEarlyStage(o.Stage)):
		r.DelaysUntil = started.Add(confirmedDelay)
	}
}

// findDelayEnd returns until when o delays r, a later delivery of its ordering key. A checked o in the backlog delays r
// until it leaves the backlog. Unchecked deliveries that were accepted after r delay r until 30 s after r's acceptance,
// so that false jobs cannot delay r one after the other.
func (o *row) findDelayEnd(r *row) time.Time {
	isLater := cmp.Or(o.AcceptedAt.Compare(r.AcceptedAt), cmp.Compare(o.seq, r.seq)) > 0
	end := r.AcceptedAt.Add(pendingDelay)
	switch {
	case !o.isUnchecked() && o.isInBacklog() && !o.DelaysUntil.IsZero():
		return Forever
	case o.isUnchecked() && isLater && end.Before(o.DelaysUntil):
		return end
	}
	return o.DelaysUntil
}

// isEarlyStage reports whether an attempt that ends in the stage has not resolved the agent yet.
func isEarlyStage(stage string) bool { return stage == "claim" || stage == "check" }

// findOpenFeedback returns the feedback of r if r is a revocation or a response and the feedback has not ended, else
// nil. It also returns nil if the feedback was replayed and the agent was called with the feedback.
func (s *Store) findOpenFeedback(r *row) *row {
	if r.job.IsRetraction() || !r.isResponse() && r.job.Kind != job.KindFeedbackRevoked {
		return nil
	}
	f := s.findKey(fmt.Sprintf("%s/%d#NewFeedback", r.job.OrderKey(), r.job.OrderSeq()))
	if f == nil || f.Status.Final() || f.Replays > 0 && f.Called {
		return nil
	}
	return f
}

// decideWait returns until when r must wait; zero: r may be called now. A mate is a delivery of the same ordering key
// (isMateOf). r must wait if a mate has the turn, if a mate with a lower index delays r, or if r is a revocation or a
// response and its feedback has not ended.
func (s *Store) decideWait(r *row, now time.Time) (until time.Time) {
	never := now.AddDate(10, 0, 0) // r waits until the other delivery releases it (releaseNext)
	switch {
	case !r.Ordered:
		return time.Time{}
	case s.find(func(o *row) bool { return o.isMateOf(r) && o.hasTurn() }) != nil:
		return never
	}
	first := s.findEarlier(r, func(o *row) bool { return o.findDelayEnd(r).After(now) })
	switch f := s.findOpenFeedback(r); {
	case first != nil && first.findDelayEnd(r).Before(never):
		return first.findDelayEnd(r)
	case first != nil || f != nil && f.agent == r.agent:
		return never
	case f != nil: // the end of the feedback does not release r
		return now.Add(otherAgentWait)
	}
	return time.Time{}
}

// findEarlier returns the first open delivery of r's ordering key that has a lower index than r and matches, or nil.
func (s *Store) findEarlier(r *row, matches func(*row) bool) (first *row) {
	for _, o := range s.rows {
		if o.isMateOf(r) && !o.Status.Final() && o.job.OrderSeq() < r.job.OrderSeq() && matches(o) &&
			(first == nil || o.job.OrderSeq() < first.job.OrderSeq()) {
			first = o
		}
	}
	return first
}

// decideDispatch is decideWait for a dispatch. An unchecked delivery may be dispatched at once, for its check, unless
// it is a revocation or a response.
func (s *Store) decideDispatch(r *row, now time.Time) (until time.Time) {
	if r.isUnchecked() && !r.isResponse() && r.job.Kind != job.KindFeedbackRevoked {
		return time.Time{}
	}
	return s.decideWait(r, now)
}

// countFree returns how many more deliveries like r its agent may have dispatched: 8 together, or 4 if r is part of a
// backfill.
func (s *Store) countFree(r *row) int {
	most := ledger.MaxDispatchedPerAgent
	if r.Bulk {
		most /= 2
	}
	return most - s.count(func(o *row) bool { return o.agent == r.agent && o.isDispatched() })
}

func (s *Store) countFreeResponses(a erc8004.Agent) int {
	return maxResponses - s.count(func(o *row) bool { return o.agent == a && o.isResponse() && o.isOut() })
}

// setAside makes the delivery r wait for another one, until the time until at the latest. excess is true if r is a
// response that waits for other responses to its agent.
func (r *row) setAside(until time.Time, excess bool, now time.Time) {
	r.setStatus(outcome.Waiting, outcome.BehindEarlier, now)
	r.NextAttemptAt, r.excess = until, excess
	r.Error = "an earlier delivery of this client has not ended: it goes first"
	if r.isResponse() {
		r.Error = "its feedback, or other responses to this agent, go first"
	}
}

// dispatchAgents dispatches from the backlogs of agents in rounds, until a round sets no delivery aside. A delivery
// that is set aside makes room for another one, so a further round is needed.
func (s *Store) dispatchAgents(agents []erc8004.Agent) (tasks []ledger.Task) {
	for again, round := true, 0; again && round < maxRounds; round++ {
		again = false
		for i, a := range agents {
			if !slices.Contains(agents[:i], a) {
				more, aside := s.dispatchRound(a)
				tasks, again = append(tasks, more...), again || aside
			}
		}
	}
	return tasks
}

// dispatchRound dispatches the oldest deliveries of the agent's backlog, up to countFree. It sets aside a delivery that
// may not be called yet, and one that is not the first of its ordering key.
func (s *Store) dispatchRound(a erc8004.Agent) (tasks []ledger.Task, aside bool) {
	now, backlog := s.now(), s.listBacklog(a)
	if len(backlog) == 0 {
		return nil, false
	}
	next := backlog[:max(min(s.countFree(backlog[0]), len(backlog)), 0)]
	waits := map[*row]time.Time{}
	for _, r := range next {
		waits[r] = s.decideDispatch(r, now)
	}
	excess := listExcess(next, waits, s.countFreeResponses(a))
	for _, r := range next {
		switch {
		case !waits[r].IsZero():
			r.setAside(waits[r], false, now)
		case slices.Contains(excess, r):
			r.setAside(now.AddDate(10, 0, 0), r.isResponse(), now)
		default:
			r.Turn = r.takesTurn()
			r.Dispatch++
			r.HandedAt, r.updated = now, now
			tasks = append(tasks, r.toTask())
			continue
		}
		aside = true
	}
	return tasks, aside
}

// listBacklog returns the agent's backlog, oldest first. It omits deliveries of a backfill if there are others.
func (s *Store) listBacklog(a erc8004.Agent) (backlog []*row) {
	for _, r := range s.rows {
		if r.agent == a && r.isInBacklog() {
			backlog = append(backlog, r)
		}
	}
	if slices.ContainsFunc(backlog, func(r *row) bool { return !r.Bulk }) {
		backlog = slices.DeleteFunc(backlog, func(r *row) bool { return r.Bulk })
	}
	return backlog
}

// listExcess returns the deliveries of next that need not wait for an older delivery (waits is zero), but must wait for
// another one of next: checked deliveries after the first of their ordering key, and responses beyond the first
// freeResponses.
func listExcess(next []*row, waits map[*row]time.Time, freeResponses int) (excess []*row) {
	for _, r := range next {
		before := 0
		for _, o := range next {
			if waits[o].IsZero() && compareOrder(o, r) < 0 &&
				(r.isResponse() && o.isResponse() || o.isMateOf(r) && !o.isUnchecked()) {
				before++
			}
		}
		if waits[r].IsZero() &&
			(r.isResponse() && r.Ordered && before >= freeResponses || r.takesTurn() && before > 0) {
			excess = append(excess, r)
		}
	}
	return excess
}

// releaseNext is called after the deliveries in ended have ended or are no longer running. It puts deliveries that
// waited for them (isSetAside) into the backlog:
//   - after a delivery that is no response, the next one of its ordering key; if the delivery had no turn and has not
//     ended, only one that waits without a time
//   - after a feedback that has ended, two responses to it
//   - after a response, the next response that waits because of maxResponses, and the next one to the same feedback
func (s *Store) releaseNext(now time.Time, ended ...*row) {
	var released []*row
	for _, r := range ended {
		release := func(most int, matches func(*row) bool) {
			var found []*row
			for _, o := range s.rows {
				if o.agent == r.agent && o.Ordered && o.isSetAside() && !slices.Contains(ended, o) && matches(o) {
					found = append(found, o)
				}
			}
			slices.SortFunc(found, compareOrder)
			released = append(released, found[:min(most, len(found))]...)
		}
		isReply := func(o *row) bool {
			return o.isResponse() && !o.excess && o.job.OrderKey() == r.job.OrderKey() &&
				o.job.OrderSeq() == r.job.OrderSeq()
		}
		endsWith := func(o *row) bool { // the feedback of o is in ended too: o is released when the loop reaches it
			return slices.ContainsFunc(ended, func(e *row) bool { return e != r && e.isFeedbackOf(o) })
		}
		awaitsFeedback := func(o *row) bool { // and the end of the feedback releases o
			f := s.findOpenFeedback(o)
			return f != nil && f.agent == o.agent
		}
		switch {
		case r.isResponse():
			release(1, func(o *row) bool { return o.isResponse() && o.excess })
			release(1, isReply)
		default:
			release(1, func(o *row) bool {
				return !o.isResponse() && o.job.OrderKey() == r.job.OrderKey() &&
					!awaitsFeedback(o) && !endsWith(o) &&
					(r.Turn || r.Status.Final() || r.Ordered && o.NextAttemptAt.After(now.AddDate(1, 0, 0)))
			})
		}
		if r.job.Kind == job.KindNewFeedback && r.Status.Final() {
			release(maxResponses, isReply)
		}
	}
	for _, o := range released {
		o.setQueued(now)
		o.Error = ""
	}
}

// keepsOrder reports whether the agent's deliveries of one ordering key are called in order.
func (s *Store) keepsOrder(a erc8004.Agent) bool {
	order := s.ensureAgent(a).policy.Order
	if order == "" && s.order != nil {
		order = s.order()
	}
	if order == "" {
		return s.strict
	}
	return order == policy.OrderStrict
}

// findOvertaken returns the index (OrderSeq) of the first open delivery of the same ordering key that is earlier than r
// and no longer delays it. It returns "" if no such delivery exists.
func (s *Store) findOvertaken(r *row, now time.Time) string {
	first := s.findEarlier(r, func(o *row) bool { return !o.DelaysUntil.IsZero() && !o.DelaysUntil.After(now) })
	if first == nil {
		return ""
	}
	return fmt.Sprint(first.job.OrderSeq())
}
