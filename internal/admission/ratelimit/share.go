package ratelimit

import "slices"

// maxWaitingEndpoints bounds the waiting endpoints that an origin records. No permit is kept for a further waiting
// endpoint. It gets a permit only if more permits are free than are kept for the recorded ones.
const maxWaitingEndpoints = 64

// grant records which endpoint was granted a call, and when (µs).
type grant struct {
	ID string
	At int64
}

// waitingEndpoint is an endpoint one of whose calls was refused because of the permits or the rate. Times are in µs.
type waitingEndpoint struct {
	ID    string
	Since int64 // when it began to wait, or was granted a call during the wait; the lowest value is served first
	// Asked is when a call that waits in a worker last asked or, if the rate refused it, will ask. It may be up to
	// presence/4 earlier, see reserveTime. 0: none waits.
	Asked int64
	Due   int64 // earliest return time: when the first of its refused deliveries may try again; 0: none
}

// isForgotten reports whether no call for the endpoint is expected any longer: no call that waits in a worker asked
// within r.presence, and the time at which a refused delivery may try again (Due) passed more than r.slack ago. Times
// from before the clock was set back count as passed.
func (w *waitingEndpoint) isForgotten(r *rules, now int64) bool {
	far := now + 2*r.maxWait
	if w.Asked > far || w.Due > far {
		return true
	}
	return (w.Asked == 0 || now > w.Asked+r.presence) && (w.Due == 0 || now > w.Due+r.slack)
}

// isExpected reports whether a call of w's endpoint is expected while a call of another endpoint runs. duration is the
// expected time of that other call in µs. A call that waits in a worker (Asked) is expected. If duration exceeds
// r.presence, a call of a refused delivery is expected around its return time (Due): from duration before it until
// duration after it, or r.slack after it if that is earlier.
func (w *waitingEndpoint) isExpected(r *rules, now, duration int64) bool {
	if w.Asked > 0 && now <= w.Asked+r.presence {
		return true
	}
	return duration > r.presence && w.Due > 0 && now >= w.Due-duration && now <= w.Due+min(duration, r.slack)
}

// weighOthers reports whether endpoint e shares its origin: whether another endpoint waits, or was granted a call
// within r.recent. It also returns the number of elders. An elder is an endpoint that has waited for r.keptAfter and
// for longer than e, is expected (isExpected), and may acquire one of the free permits. The caller keeps one permit and
// one call of the rate for each elder, so that e cannot use them.
func (m *originState) weighOthers(r *rules, now int64, e *circuit, free int) (shared bool, elders int) {
	other := m.Seen[0]
	if other.ID == e.id {
		other = m.Seen[1]
	}
	shared = other.At > 0 && other.At <= now+r.recent && now < other.At+r.recent
	since := now
	if w := m.findWaiting(r, now, e.id); w != nil {
		since = w.Since
	}
	for i := range m.Waiting {
		w := &m.Waiting[i]
		if w.ID == e.id || w.isForgotten(r, now) {
			continue
		}
		shared = true
		if w.Since < since && now >= w.Since+r.keptAfter && w.isExpected(r, now, max(e.Mean, r.gap)) &&
			m.countHeld(r, now, w.ID) < free {
			elders++
		}
	}
	return shared, elders
}

// findWaiting returns the entry in m.Waiting of the endpoint with this id. It returns nil if the endpoint has
// no entry, or if its entry is forgotten (isForgotten).
func (m *originState) findWaiting(r *rules, now int64, id string) *waitingEndpoint {
	for i := range m.Waiting {
		if w := &m.Waiting[i]; w.ID == id && !w.isForgotten(r, now) {
			return w
		}
	}
	return nil
}

// startWaiting returns the entry in m.Waiting of the endpoint with this id. If the endpoint has none,
// startWaiting adds one, whose wait starts at now. It returns nil if maxWaitingEndpoints other endpoints wait.
func (m *originState) startWaiting(r *rules, now int64, id string) *waitingEndpoint {
	m.dropForgotten(r, now)
	if w := m.findWaiting(r, now, id); w != nil {
		return w
	}
	if len(m.Waiting) >= maxWaitingEndpoints {
		return nil
	}
	m.Waiting = append(m.Waiting, waitingEndpoint{ID: id, Since: now})
	return &m.Waiting[len(m.Waiting)-1]
}

// stopWaiting removes the entry of the endpoint with this id, if there is one.
func (m *originState) stopWaiting(r *rules, now int64, id string) {
	if m.findWaiting(r, now, id) != nil {
		m.dropForgotten(r, now)
		m.Waiting = slices.DeleteFunc(m.Waiting, func(w waitingEndpoint) bool { return w.ID == id })
	}
}

// dropForgotten removes the entries that are forgotten (isForgotten).
func (m *originState) dropForgotten(r *rules, now int64) {
	m.Waiting = slices.DeleteFunc(m.Waiting, func(w waitingEndpoint) bool {
		return w.isForgotten(r, now)
	})
}

// recordServed records in m.Seen that a call to the endpoint was granted. If the endpoint was waiting, it stops
// waiting. But if another delivery of the endpoint may try again at a later time (e.Line), the endpoint continues to
// wait, behind all others, unless the list of waiting endpoints is full.
func (m *originState) recordServed(r *rules, now int64, e *circuit) {
	if m.Seen[0].ID != e.id {
		m.Seen[1] = m.Seen[0]
	}
	m.Seen[0] = grant{e.id, now}
	if m.findWaiting(r, now, e.id) == nil {
		return
	}
	m.dropForgotten(r, now)
	line := limitTime(e.Line, now, r.maxWait, 0)
	if line <= now || len(m.Waiting) >= maxWaitingEndpoints {
		m.stopWaiting(r, now, e.id)
		return
	}
	w := m.findWaiting(r, now, e.id)
	w.Since, w.Asked, w.Due = now, 0, line
}
