package ratelimit

import "slices"

// maxWaiters bounds the endpoints of one origin that are known to wait. Of more, those that are not known have no turn:
// they come after all that are.
const maxWaiters = 64

// grant is a call that was let through.
type grant struct {
	id string
	at int64
}

// waiting is an endpoint that was refused a permit, or the rate, and whose turn will come.
type waiting struct {
	id    string
	since int64 // it waits, or its last turn was: the smallest goes first
	asked int64 // when a call that waits in a worker's room asks, or asks again; 0: none waits there
	due   int64 // the first reservation that has not passed; 0: none
}

// isForgotten says that nobody comes any more: no call waits in a room, and the reservation passed. Times from before
// the clock was set back count as passed.
func (w *waiting) isForgotten(r *rules, now int64) bool {
	far := now + 2*r.maxWait
	if w.asked > far || w.due > far {
		return true
	}
	return (w.asked == 0 || now > w.asked+r.presence) && (w.due == 0 || now > w.due+r.slack)
}

// isExpected says whether a call that takes that long would be in the way of w: w asks now, or comes back while the
// call runs. Calls that end before w would leave a room are in nobody's way.
func (w *waiting) isExpected(r *rules, now, long int64) bool {
	if w.asked > 0 && now <= w.asked+r.presence {
		return true
	}
	return long > r.presence && w.due > 0 && now >= w.due-long && now <= w.due+min(long, r.slack)
}

// weighOthers says whether an endpoint shares the origin with others, and for how many of them a permit, and a call of
// the rate, are kept: those that have waited longer, are expected, and may take one of the free permits.
func (m *originState) weighOthers(r *rules, now int64, e *circuit, free int) (shared bool, elders int) {
	other := m.seen[0]
	if other.id == e.id {
		other = m.seen[1]
	}
	shared = other.at > 0 && other.at <= now+r.recent && now < other.at+r.recent
	since := now
	if w := m.findWaiting(r, now, e.id); w != nil {
		since = w.since
	}
	for i := range m.waiters {
		w := &m.waiters[i]
		if w.id == e.id || w.isForgotten(r, now) {
			continue
		}
		shared = true
		if w.since < since && now >= w.since+r.keptAfter && w.isExpected(r, now, max(e.mean, r.gap)) &&
			m.countHeld(r, now, w.id) < free {
			elders++
		}
	}
	return shared, elders
}

// findWaiting returns the endpoint if it waits.
func (m *originState) findWaiting(r *rules, now int64, id string) *waiting {
	for i := range m.waiters {
		if w := &m.waiters[i]; w.id == id && !w.isForgotten(r, now) {
			return w
		}
	}
	return nil
}

// startWaiting returns the endpoint's entry, made if it had none; nil: too many wait.
func (m *originState) startWaiting(r *rules, now int64, id string) *waiting {
	m.dropForgotten(r, now)
	if w := m.findWaiting(r, now, id); w != nil {
		return w
	}
	if len(m.waiters) >= maxWaiters {
		return nil
	}
	m.waiters = append(m.waiters, waiting{id: id, since: now})
	return &m.waiters[len(m.waiters)-1]
}

func (m *originState) stopWaiting(r *rules, now int64, id string) {
	if m.findWaiting(r, now, id) != nil {
		m.dropForgotten(r, now)
		m.waiters = slices.DeleteFunc(m.waiters, func(w waiting) bool { return w.id == id })
	}
}

func (m *originState) dropForgotten(r *rules, now int64) {
	m.waiters = slices.DeleteFunc(m.waiters, func(w waiting) bool { return w.isForgotten(r, now) })
}

// recordServed writes down that the endpoint had its turn: if more of its calls have reservations it waits on, behind
// all others.
func (m *originState) recordServed(r *rules, now int64, e *circuit) {
	if m.seen[0].id != e.id {
		m.seen[1] = m.seen[0]
	}
	m.seen[0] = grant{e.id, now}
	if m.findWaiting(r, now, e.id) == nil {
		return
	}
	m.dropForgotten(r, now)
	line := plausible(e.line, now, r.maxWait, 0)
	if line <= now || len(m.waiters) >= maxWaiters {
		m.stopWaiting(r, now, e.id)
		return
	}
	w := m.findWaiting(r, now, e.id)
	w.since, w.asked, w.due = now, 0, line
}
