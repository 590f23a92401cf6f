package ratelimit

import "slices"

// maxWaitingEndpoints bounds the waiting endpoints that an origin records. No permit is kept for a further waiting
// endpoint. It gets a permit only if more permits are free than are kept for the recorded ones.
const maxWaitingEndpoints = 64

// grant records which endpoint was granted a call, and when (µs).
type grant struct {
	id string
	at int64
}

// waitingEndpoint is an endpoint one of whose calls was refused because of the permits or the rate. Times are in µs.
type waitingEndpoint struct {
	id    string
	since int64 // when it began to wait, or was granted a call during the wait; the lowest value is served first
	asked int64 // when a call that waits in a worker last asked or, if the rate refused it, will ask; 0: none waits
	due   int64 // earliest return time: when the first of its refused deliveries may try again; 0: none
}

// isForgotten reports whether no call for the endpoint is expected any longer: no call that waits in a worker asked
// within r.presence, and the time at which a refused delivery may try again (due) passed more than r.slack ago. Times
// from before the clock was set back count as passed.
func (w *waitingEndpoint) isForgotten(r *rules, now int64) bool {
	far := now + 2*r.maxWait
	if w.asked > far || w.due > far {
		return true
	}
	return (w.asked == 0 || now > w.asked+r.presence) && (w.due == 0 || now > w.due+r.slack)
}

// isExpected reports whether a call of w's endpoint is expected while a call of another endpoint runs. duration is the
// expected time of that other call in µs. A call that waits in a worker (asked) is expected. If duration exceeds
// r.presence, a call of a refused delivery is expected around its return time (due): from duration before it until
// duration after it, or r.slack after it if that is earlier.
func (w *waitingEndpoint) isExpected(r *rules, now, duration int64) bool {
	if w.asked > 0 && now <= w.asked+r.presence {
		return true
	}
	return duration > r.presence && w.due > 0 && now >= w.due-duration && now <= w.due+min(duration, r.slack)
}

// weighOthers reports whether endpoint e shares its origin: whether another endpoint waits, or was granted a call
// within r.recent. It also returns the number of elders. An elder is an endpoint that has waited for r.keptAfter and
// for longer than e, is expected (isExpected), and may acquire one of the free permits. The caller keeps one permit and
// one call of the rate for each elder, so that e cannot use them.
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
	for i := range m.waitingEndpoints {
		w := &m.waitingEndpoints[i]
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

// findWaiting returns the entry in m.waitingEndpoints of the endpoint with this id. It returns nil if the endpoint has
// no entry, or if its entry is forgotten (isForgotten).
func (m *originState) findWaiting(r *rules, now int64, id string) *waitingEndpoint {
	for i := range m.waitingEndpoints {
		if w := &m.waitingEndpoints[i]; w.id == id && !w.isForgotten(r, now) {
			return w
		}
	}
	return nil
}

// startWaiting returns the entry in m.waitingEndpoints of the endpoint with this id. If the endpoint has none,
// startWaiting adds one, whose wait starts at now. It returns nil if maxWaitingEndpoints other endpoints wait.
func (m *originState) startWaiting(r *rules, now int64, id string) *waitingEndpoint {
	m.dropForgotten(r, now)
	if w := m.findWaiting(r, now, id); w != nil {
		return w
	}
	if len(m.waitingEndpoints) >= maxWaitingEndpoints {
		return nil
	}
	m.waitingEndpoints = append(m.waitingEndpoints, waitingEndpoint{id: id, since: now})
	return &m.waitingEndpoints[len(m.waitingEndpoints)-1]
}

// stopWaiting removes the entry of the endpoint with this id, if there is one.
func (m *originState) stopWaiting(r *rules, now int64, id string) {
	if m.findWaiting(r, now, id) != nil {
		m.dropForgotten(r, now)
		m.waitingEndpoints = slices.DeleteFunc(m.waitingEndpoints, func(w waitingEndpoint) bool { return w.id == id })
	}
}

// dropForgotten removes the entries that are forgotten (isForgotten).
func (m *originState) dropForgotten(r *rules, now int64) {
	m.waitingEndpoints = slices.DeleteFunc(m.waitingEndpoints, func(w waitingEndpoint) bool {
		return w.isForgotten(r, now)
	})
}

// recordServed records in m.seen that a call to the endpoint was granted. If the endpoint was waiting, it stops
// waiting. But if another delivery of the endpoint may try again at a later time (e.line), the endpoint continues to
// wait, behind all others, unless the list of waiting endpoints is full.
func (m *originState) recordServed(r *rules, now int64, e *circuit) {
	if m.seen[0].id != e.id {
		m.seen[1] = m.seen[0]
	}
	m.seen[0] = grant{e.id, now}
	if m.findWaiting(r, now, e.id) == nil {
		return
	}
	m.dropForgotten(r, now)
	line := limitTime(e.line, now, r.maxWait, 0)
	if line <= now || len(m.waitingEndpoints) >= maxWaitingEndpoints {
		m.stopWaiting(r, now, e.id)
		return
	}
	w := m.findWaiting(r, now, e.id)
	w.since, w.asked, w.due = now, 0, line
}
