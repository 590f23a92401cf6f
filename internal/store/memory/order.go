package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

const (
	holdTime        = 60 * time.Second          // how long a delivery blocks later ones after its first attempt began
	unconfirmedHold = 10 * time.Minute          // as holdTime, if the chain does not have the event yet
	lookTime        = 10 * 365 * 24 * time.Hour // wait of a delivery that a record will release
)

// forever represents holds_until = 'infinity': the delivery has had no attempt.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// KeepOrder makes the store keep the order of each ordering key, as store.Config.StrictOrder does.
func (s *Store) KeepOrder() *Store {
	s.strict = true
	return s
}

// hasOrder corresponds to herald.has_order of migration 0018.
func (r *row) hasOrder() bool {
	return r.job.Kind == job.KindNewFeedback || r.job.Kind == job.KindValidationResponse
}

// followsFeedback corresponds to herald.follows_feedback.
func (r *row) followsFeedback() bool {
	return r.job.Kind == job.KindResponseAppended || r.job.Kind == job.KindFeedbackRevoked && r.job.Reason != job.RevokedByReorg
}

// awaitsFeedback corresponds to herald.awaits_feedback.
func (s *Store) awaitsFeedback(r *row) bool {
	f := s.byKey[fmt.Sprintf("%s/%d#NewFeedback", r.job.OrderKey(), r.job.OrderSeq())]
	return r.followsFeedback() && f != nil && !f.Status.Final() && (f.replays == 0 || !f.called)
}

// isMateOf reports whether o is another delivery of the same ordering key.
func (r *row) isMateOf(o *row) bool {
	return r != o && r.agent == o.agent && r.job.OrderKey() == o.job.OrderKey()
}

// orderWait corresponds to herald.order_wait. It reports whether a delivery must wait for another one of its ordering
// key, and when to test it again.
func (s *Store) orderWait(r *row, now time.Time) (look time.Time, waits bool) {
	if !s.strict || s.agent(r.agent).policy.Order == store.OrderOff {
		return time.Time{}, false
	}
	var holder *row
	for _, o := range s.rows {
		switch {
		case !o.isMateOf(r):
		case o.isDispatched():
			return now.Add(lookTime), true
		case (o.holdsUntil.After(now) || !o.holdsUntil.IsZero() && o.isInLine()) && !o.Status.Final() && o.replays == 0 && o.job.OrderSeq() < r.job.OrderSeq() &&
			(holder == nil || o.job.OrderSeq() < holder.job.OrderSeq()):
			holder = o
		}
	}
	if holder != nil {
		look = now.Add(lookTime)
		if holder.holdsUntil.Before(look) && !holder.isInLine() {
			look = holder.holdsUntil
		}
		return look, true
	}
	return now.Add(lookTime), s.awaitsFeedback(r)
}

// stepBehind makes a delivery wait for another one of its ordering key.
func (r *row) stepBehind(look, now time.Time) {
	r.queue(now)
	r.Status, r.Reason, r.NextAttemptAt = store.Waiting, reason.BehindEarlier, &look
	r.Error = "an earlier delivery of this client has not ended: it goes first"
}

// holdOthers sets until when a delivery blocks later ones, after its first attempt began.
func (r *row) holdOthers(until time.Time) {
	if r.holdsUntil.Equal(forever) {
		r.holdsUntil = until
	}
}

// releaseFollowers puts deliveries that wait for r into the backlog: the next of its ordering key with an index, the
// next without, and those that wait for r as their feedback.
func (s *Store) releaseFollowers(r *row, now time.Time) {
	next := map[bool]*row{}
	for _, f := range s.rows {
		switch {
		case !f.isMateOf(r) || f.Status != store.Waiting || f.Reason != reason.BehindEarlier:
		case s.awaitsFeedback(f):
		case r.Status.Final() && f.followsFeedback() && f.job.OrderSeq() == r.job.OrderSeq():
			f.queue(now)
			f.Error = ""
		case next[f.hasOrder()] == nil || f.hasOrder() && f.job.OrderSeq() < next[true].job.OrderSeq():
			next[f.hasOrder()] = f
		}
	}
	for _, f := range next {
		f.queue(now)
		f.Error = ""
	}
}

// Followers dispatches waiting deliveries that no longer have a delivery to wait for.
func (s *Store) Followers(_ context.Context, _ int64, limit int) ([]store.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var agents []store.Agent
	for _, r := range slices.Clone(s.rows) {
		if len(agents) == limit || r.Status != store.Waiting || r.Reason != reason.BehindEarlier {
			continue
		}
		if _, waits := s.orderWait(r, now); !waits {
			r.queue(now)
			r.Error = ""
			agents = append(agents, r.agent)
		}
	}
	return s.dispatch(agents...), nil
}

// isInLine reports whether the delivery is in its agent's backlog: queued and not dispatched.
func (r *row) isInLine() bool { return r.Status == store.Queued && r.handed.IsZero() }

// releaseHeld queues a held delivery as if it had just been accepted.
func (r *row) releaseHeld(now time.Time) {
	r.queue(now)
	if !r.called && !r.holdsUntil.IsZero() {
		r.holdsUntil = forever
	}
}

// aheadOf returns the index of the first earlier open delivery of the ordering key that no longer blocks r, or "".
func (s *Store) aheadOf(r *row, now time.Time) string {
	var first *row
	for _, o := range s.rows {
		if o.isMateOf(r) && !o.holdsUntil.IsZero() && !o.holdsUntil.After(now) && !o.Status.Final() && o.replays == 0 && o.job.OrderSeq() < r.job.OrderSeq() &&
			(first == nil || o.job.OrderSeq() < first.job.OrderSeq()) {
			first = o
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprint(first.job.OrderSeq())
}
