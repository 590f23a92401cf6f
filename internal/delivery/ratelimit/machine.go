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
	keptAfter        int64 // how long an endpoint waits before places are kept for it
	recent           int64 // how long an endpoint that was called counts as one that shares the origin
}

// question is what enter is asked.
type question struct {
	attempt bool // take a place if there is one
	reserve bool // when there is none, reserve a time to come back
}

// code is enter's answer, the same numbers as in enter.lua.
type code int64

const (
	granted code = iota
	grantedProbe
	busy
	throttled
	open
)

func (c code) granted() bool { return c == granted || c == grantedProbe }

// verdict is enter's answer. Times in microseconds.
type verdict struct {
	code  code
	wait  int64 // the reservation; without one until the rate allows the next call, or 0
	state state
	left  int64 // how long the breaker stays open
}

// ending is leave's answer.
type ending struct {
	known bool // the token held a place: the result was counted
	state state
	left  int64
}

// machine is the state of one origin: what its endpoints share. It has no lock and no clock.
type machine struct {
	places  map[string]int64 // token → when the place is free again whatever happens
	tat     int64            // GCRA's theoretical arrival time
	seen    [2]sighting      // the endpoint called last, and the last one besides it
	waiters []waiting        // at most maxWaiters, in no order; those that are forgotten go when the list is written
}

// tokenOf is what a place is held by: the endpoint's id, a space, and what the caller named the attempt.
func tokenOf(id, name string) string { return id + " " + name }

// enter is the rule; enter.lua is the same.
func (m *machine) enter(r *rules, now int64, e *circuit, token string, q question) verdict {
	tat := max(sane(m.tat, now, r.burst*r.gap, 0), now)
	until := sane(e.open, now, r.openFor, now)
	v := verdict{}
	v.state, v.left = breakerState(until, now)
	m.purge(now)
	if _, held := m.places[token]; held && q.attempt {
		if token == e.probe {
			v.code = grantedProbe
		}
		return v
	}
	free := r.inflight - m.countHeld(r, now, "")
	shared, elders := m.weighOthers(r, now, e, free)
	turn := tat + r.gap*(1+int64(elders)) - r.burst*r.gap
	switch {
	case v.state == opened || v.state == halfOpen && e.probe != "" && sane(e.probeUntil, now, r.hold, 0) > now:
		v.code = open
		m.stopWaiting(r, now, e.id)
	case free <= elders || shared && m.countHeld(r, now, e.id) >= e.limitShare(r, now, free):
		v.code = busy
	case turn > now:
		v.code, v.wait = throttled, turn-now
	case !q.attempt:
		v.code = busy
	default:
		m.take(r, now, token)
		if v.state == halfOpen {
			v.code = grantedProbe
			e.probe, e.probeUntil = token, now+r.hold
		}
		m.tat = tat + r.gap
		m.served(r, now, e)
		return v
	}
	m.refused(r, now, e, until, &v, q)
	return v
}

// refused makes the reservation, and writes down that the endpoint waits.
func (m *machine) refused(r *rules, now int64, e *circuit, until int64, v *verdict, q question) {
	var w *waiting
	from, waiters := now+r.minWait, int64(1)
	if v.code == open {
		from = max(from, until)
	} else if q.attempt || q.reserve {
		w = m.startWaiting(r, now, e.id)
		waiters = int64(len(m.waiters))
	}
	if q.reserve || v.code == open {
		line := sane(e.line, now, r.maxWait, 0)
		places := int64(r.inflight)
		e.line = min(max(line, from)+max(r.gap*waiters, e.mean/places*min(waiters, places)), now+r.maxWait)
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

// leave is the rule; leave.lua is the same.
func (m *machine) leave(r *rules, now int64, e *circuit, token string, result Result, took int64) ending {
	_, known := m.places[token]
	delete(m.places, token)
	if known {
		e.count(r, now, token, result, took)
	}
	end := ending{known: known}
	end.state, end.left = breakerState(sane(e.open, now, r.openFor, now), now)
	return end
}

// sane is x, unless it lies further ahead than twice what can be put there: then it is from before the clock was set back, and
// must not close an origin for an hour.
func sane(x, now, most, instead int64) int64 {
	if x > now+2*most {
		return instead
	}
	return x
}

func (m *machine) take(r *rules, now int64, token string) {
	if m.places == nil {
		m.places = make(map[string]int64, min(r.inflight, 4))
	}
	m.places[token] = now + r.hold
}

// purge takes back the places whose holders are gone.
func (m *machine) purge(now int64) {
	for token, until := range m.places {
		if until <= now {
			delete(m.places, token)
		}
	}
}

func (m *machine) full(r *rules, now int64) bool { return m.countHeld(r, now, "") >= r.inflight }

// countHeld is how many places an endpoint holds; "": all of them.
func (m *machine) countHeld(r *rules, now int64, id string) int {
	n := 0
	for token, until := range m.places {
		if until <= now+2*r.hold && (id == "" || heldBy(token, id)) { // beyond: from before the clock was set back
			n++
		}
	}
	return n
}

// heldBy undoes tokenOf.
func heldBy(token, id string) bool {
	return len(token) > len(id) && token[len(id)] == ' ' && strings.HasPrefix(token, id)
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }
