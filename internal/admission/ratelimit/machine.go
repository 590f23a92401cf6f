package ratelimit

import (
	"cmp"
	"strings"
	"time"
)

// rules are the parameters of the rules in doc.go, which originState and circuit apply. Times are in microseconds.
type rules struct {
	inflight         int
	gap              int64 // time between two calls at the full rate
	burst            int64
	hold             int64 // after this time, a permit expires even if it is not released: Config.PermitTTL
	firstMean        int64 // mean call time of an endpoint before its first call has ended: Config.FirstMean
	returns          int64 // Config.Returns
	bucket           int64 // length of a bucket: a tenth of the breaker's window
	minCalls         int64
	ratio            float64
	openFor          int64 // how long the breaker stays open
	minWait, maxWait int64
	presence         int64 // a waiting call counts as asking for a permit until this time after its last try
	slack            int64 // how long after the time reserved for a refused delivery its call is still expected
	keptAfter        int64 // how long an endpoint must wait before permits are kept for it
	recent           int64 // how long after a granted call its endpoint counts as using the origin
}

// question states which steps acquire may take for a call.
type question struct {
	attempt bool  // acquire a permit if possible
	reserve bool  // if no permit is acquired, reserve a time at which the delivery may try again
	gap     int64 // µs between two calls, and no burst (AcquireRate); 0: the limiter's own gap and burst
}

// code is the kind of an answer: granted, granted as the breaker's probe, or refused. The reason of a refusal is that
// no permit is free (busy), the rate (throttled) or the breaker (open).
type code int64

const (
	granted code = iota
	grantedProbe
	busy
	throttled
	open
)

func (c code) isGranted() bool { return c == granted || c == grantedProbe }

// forbidsCalls reports whether the answer forbids calls until a fixed time. Then the call does not count as waiting
// for a permit, and always gets a return time.
func (c code) forbidsCalls() bool { return c == open }

// acquireAnswer is the answer of originState.acquire.
type acquireAnswer struct {
	code code
	// wait is the time in µs until the delivery may try again. If no time is reserved for it, wait is the time until
	// the rate allows a call, or 0.
	wait int64
}

// originState is the state of one origin in the rules (doc.go), which all its endpoints share. It is stored in Redis as
// JSON. The caller provides the lock and the clock.
type originState struct {
	Permits map[string]int64 // token → when the permit expires, in µs
	TAT     int64            // GCRA's theoretical arrival time, in µs
	Seen    [2]grant         // the latest grant, and the latest grant to any other endpoint
	// Waiting has at most maxWaitingEndpoints entries, unordered. Some may no longer wait (isForgotten).
	Waiting []waitingEndpoint `json:",omitempty"`
}

// permitToken returns the token of a permit: the endpoint's id, a space, and the name of the attempt.
func permitToken(id, name string) string { return id + " " + name }

// acquire grants token a permit for a call to endpoint e, or refuses it because of the breaker, the permits or the
// rate, in this order. q limits what acquire may do.
func (m *originState) acquire(r *rules, now int64, e *circuit, token string, q question) acquireAnswer {
	if q.gap > 0 {
		own := *r
		own.gap, own.burst = q.gap, 1
		r = &own
	}
	tat := max(limitTime(m.TAT, now, r.burst*r.gap, 0), now)
	until := limitTime(e.OpenUntil, now, r.openFor, now)
	v, breaker := acquireAnswer{}, breakerState(until, now)
	m.dropExpired(now)
	if _, held := m.Permits[token]; held && q.attempt {
		m.takePermit(r, now, token)
		if token == e.Probe {
			v.code = grantedProbe
		}
		return v
	}
	free := r.inflight - m.countHeld(r, now, "")
	shared, elders := m.weighOthers(r, now, e, free)
	allowedAt := tat + r.gap*(1+int64(elders)) - r.burst*r.gap
	switch {
	case breaker == opened || breaker == halfOpen && m.isProbed(r, now, e):
		v.code = open
		m.stopWaiting(r, now, e.id)
	case free <= elders || shared && m.countHeld(r, now, e.id) >= e.limitShare(r, now, free):
		v.code = busy
	case allowedAt > now:
		v.code, v.wait = throttled, allowedAt-now
	case !q.attempt:
		v.code = busy
	default:
		m.takePermit(r, now, token)
		if breaker == halfOpen {
			v.code = grantedProbe
			e.Probe = token
		}
		m.TAT = tat + r.gap
		m.recordServed(r, now, e)
		return v
	}
	m.reserveTime(r, now, e, until, &v, q)
	return v
}

// reserveTime completes the refusal v of a call to endpoint e:
//   - It records that the endpoint waits, unless the breaker refused the call, or q.attempt and q.reserve are both
//     false.
//   - If q.reserve is set or the breaker refused the call, it reserves a return time, at which the delivery may try
//     again, and sets v.wait to the time until then. If the breaker refused the call, the return time is not before
//     openUntil, when the breaker becomes half-open.
func (m *originState) reserveTime(r *rules, now int64, e *circuit, openUntil int64, v *acquireAnswer, q question) {
	var w *waitingEndpoint
	from, waiters := now+r.minWait, int64(1)
	if v.code.forbidsCalls() {
		from = max(from, openUntil)
	} else if q.attempt || q.reserve {
		w = m.startWaiting(r, now, e.id)
		waiters = int64(len(m.Waiting))
	}
	if q.reserve || v.code.forbidsCalls() {
		line := limitTime(e.Line, now, r.maxWait, 0)
		inflight, mean := int64(r.inflight), cmp.Or(e.Mean, r.firstMean)
		step := mean / inflight * min(waiters, inflight) / r.returns
		e.Line = min(max(line, from)+max(r.gap*waiters, step), now+r.maxWait)
		v.wait = e.Line - now
	}
	switch {
	case w == nil:
	case !q.reserve:
		// Waiting calls ask often. If a try leaves the state as it is, no worker has to compute its own step again.
		if asked := now + min(v.wait, r.maxWait); asked < w.Asked || asked > w.Asked+r.presence/4 {
			w.Asked = asked
		}
	case w.Due >= now:
		w.Asked, w.Due = 0, min(w.Due, e.Line)
	default:
		w.Asked, w.Due = 0, e.Line
	}
}

// release releases the token's permit, counts the result of its call, and returns true. If the token holds no permit,
// it does nothing and returns false. took is the duration of the call in µs.
func (m *originState) release(r *rules, now int64, e *circuit, token string, result Result, took int64) bool {
	m.dropExpired(now)
	_, held := m.Permits[token]
	delete(m.Permits, token)
	if held {
		e.countResult(r, now, token, result, took)
	}
	return held
}

// limitTime returns x, a time in µs that was at most limit ahead of the clock when it was set. If x is now more than
// 2*limit ahead, the clock was set back since, and calls would have to wait too long for the time x. Then limitTime
// returns fallback.
func limitTime(x, now, limit, fallback int64) int64 {
	if x > now+2*limit {
		return fallback
	}
	return x
}

// takePermit makes the token hold a permit until it is released or rules.hold has passed from now on.
func (m *originState) takePermit(r *rules, now int64, token string) {
	if m.Permits == nil {
		m.Permits = make(map[string]int64, min(r.inflight, 4))
	}
	m.Permits[token] = now + r.hold
}

// dropExpired deletes the permits that have expired at now (µs).
func (m *originState) dropExpired(now int64) {
	for token, until := range m.Permits {
		if until <= now {
			delete(m.Permits, token)
		}
	}
}

// countHeld returns the number of permits that the endpoint with this id holds. If id is "", it counts the permits of
// all endpoints of the origin. Expired permits count until dropExpired deletes them. Permits that were acquired before
// the clock was set back do not count.
func (m *originState) countHeld(r *rules, now int64, id string) int {
	n := 0
	for token, until := range m.Permits {
		if until <= now+2*r.hold && (id == "" || isHeldBy(token, id)) { // else: acquired before the clock was set back
			n++
		}
	}
	return n
}

// isProbed reports whether the probe of endpoint e is in flight: it holds a permit, which countHeld would count.
func (m *originState) isProbed(r *rules, now int64, e *circuit) bool {
	until, held := m.Permits[e.Probe]
	return held && until <= now+2*r.hold
}

// isHeldBy reports whether the token belongs to a call to the endpoint with this id (permitToken).
func isHeldBy(token, id string) bool {
	return len(token) > len(id) && token[len(id)] == ' ' && strings.HasPrefix(token, id)
}

func toMicros(d time.Duration) int64 { return int64(d / time.Microsecond) }
