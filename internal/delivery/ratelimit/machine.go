package ratelimit

import (
	"strings"
	"time"
)

// rules are the numbers of the state machine; times in microseconds, as in Redis.
type rules struct {
	inflight         int
	gap              int64 // between two calls at the full rate
	burst            int64
	hold             int64
	bucket           int64 // a tenth of the breaker's window
	minCalls         int64
	ratio            float64
	openFor          int64
	minWait, maxWait int64
	presence         int64 // how long an endpoint that asked without reserving is taken to be asking still
	slack            int64 // how long after its reservation a call is still expected
	keptAfter        int64 // how long an endpoint waits before permits are kept for it
	recent           int64 // how long an endpoint that was called counts as one that shares the origin
}

// question is what acquire is asked.
type question struct {
	attempt bool // take a permit if there is one
	reserve bool // when there is none, reserve a time to come back
}

// code is acquire's answer, the same numbers as in acquire.lua.
type code int64

const (
	granted code = iota
	grantedProbe
	busy
	throttled
	open
)

func (c code) isGranted() bool { return c == granted || c == grantedProbe }

// acquireAnswer is acquire's answer. Times in microseconds.
type acquireAnswer struct {
	code  code
	wait  int64 // the reservation; without one until the rate allows the next call, or 0
	state state
	left  int64 // how long the breaker stays open
}

// releaseAnswer is release's answer.
type releaseAnswer struct {
	known bool // the token held a permit: the result was counted
	state state
	left  int64
}

// originState is the state of one origin: what its endpoints share. It has no lock and no clock.
type originState struct {
	permits map[string]int64 // token → when the permit is free again whatever happens
	tat     int64            // GCRA's theoretical arrival time
	seen    [2]grant         // the endpoint called last, and the last one besides it
	waiters []waiting        // at most maxWaiters, in no order; those that are forgotten go when the list is written
}

// permitToken is what a permit is held by: the endpoint's id, a space, and what the caller named the attempt.
func permitToken(id, name string) string { return id + " " + name }

// acquire is the rule; acquire.lua is the same.
func (m *originState) acquire(r *rules, now int64, e *circuit, token string, q question) acquireAnswer {
	tat := max(plausible(m.tat, now, r.burst*r.gap, 0), now)
	until := plausible(e.open, now, r.openFor, now)
	v := acquireAnswer{}
	v.state, v.left = breakerState(until, now)
	m.dropExpired(now)
	if _, held := m.permits[token]; held && q.attempt {
		if token == e.probe {
			v.code = grantedProbe
		}
		return v
	}
	free := r.inflight - m.countHeld(r, now, "")
	shared, elders := m.weighOthers(r, now, e, free)
	turn := tat + r.gap*(1+int64(elders)) - r.burst*r.gap
	switch {
	case v.state == opened || v.state == halfOpen && e.probe != "" && plausible(e.probeUntil, now, r.hold, 0) > now:
		v.code = open
		m.stopWaiting(r, now, e.id)
	case free <= elders || shared && m.countHeld(r, now, e.id) >= e.limitShare(r, now, free):
		v.code = busy
	case turn > now:
		v.code, v.wait = throttled, turn-now
	case !q.attempt:
		v.code = busy
	default:
		m.takePermit(r, now, token)
		if v.state == halfOpen {
			v.code = grantedProbe
			e.probe, e.probeUntil = token, now+r.hold
		}
		m.tat = tat + r.gap
		m.recordServed(r, now, e)
		return v
	}
	m.reserveTime(r, now, e, until, &v, q)
	return v
}

// reserveTime makes the reservation, and writes down that the endpoint waits.
func (m *originState) reserveTime(r *rules, now int64, e *circuit, until int64, v *acquireAnswer, q question) {
	var w *waiting
	from, waiters := now+r.minWait, int64(1)
	if v.code == open {
		from = max(from, until)
	} else if q.attempt || q.reserve {
		w = m.startWaiting(r, now, e.id)
		waiters = int64(len(m.waiters))
	}
	if q.reserve || v.code == open {
		line := plausible(e.line, now, r.maxWait, 0)
		inflight := int64(r.inflight)
		e.line = min(max(line, from)+max(r.gap*waiters, e.mean/inflight*min(waiters, inflight)), now+r.maxWait)
		v.wait = e.line - now
	}
	switch {
	case w == nil:
	case !q.reserve:
		w.asked = now + min(v.wait, r.maxWait)
	case w.due >= now:
		w.asked, w.due = 0, min(w.due, e.line)
	default:
		w.asked, w.due = 0, e.line
	}
}

// release is the rule; release.lua is the same.
func (m *originState) release(r *rules, now int64, e *circuit, token string, result Result, took int64) releaseAnswer {
	_, known := m.permits[token]
	delete(m.permits, token)
	if known {
		e.countResult(r, now, token, result, took)
	}
	end := releaseAnswer{known: known}
	end.state, end.left = breakerState(plausible(e.open, now, r.openFor, now), now)
	return end
}

// plausible is x, unless it lies further ahead than twice what can be put there: then it is from before the clock was
// set back, and must not close an origin for an hour.
func plausible(x, now, most, instead int64) int64 {
	if x > now+2*most {
		return instead
	}
	return x
}

func (m *originState) takePermit(r *rules, now int64, token string) {
	if m.permits == nil {
		m.permits = make(map[string]int64, min(r.inflight, 4))
	}
	m.permits[token] = now + r.hold
}

// dropExpired takes back the permits whose holders are gone.
func (m *originState) dropExpired(now int64) {
	for token, until := range m.permits {
		if until <= now {
			delete(m.permits, token)
		}
	}
}

func (m *originState) isFull(r *rules, now int64) bool { return m.countHeld(r, now, "") >= r.inflight }

// countHeld is how many permits an endpoint holds; "": all of them.
func (m *originState) countHeld(r *rules, now int64, id string) int {
	n := 0
	for token, until := range m.permits {
		if until <= now+2*r.hold && (id == "" || isHeldBy(token, id)) { // beyond: from before the clock was set back
			n++
		}
	}
	return n
}

// isHeldBy undoes permitToken.
func isHeldBy(token, id string) bool {
	return len(token) > len(id) && token[len(id)] == ' ' && strings.HasPrefix(token, id)
}

func toMicros(d time.Duration) int64 { return int64(d / time.Microsecond) }
