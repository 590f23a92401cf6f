package limits

import "time"

// buckets is how many parts the breaker's window has: it forgets a tenth at a time.
const buckets = 10

// rules are the numbers of the state machine; times in microseconds, as in Redis.
type rules struct {
	inflight         int
	gap              int64 // between two calls at the full rate
	burst            int64
	hold             int64
	bucket           int64 // a tenth of the window
	minCalls         int64
	ratio            float64
	openFor          int64
	minWait, maxWait int64
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

// state is the breaker's, the same numbers as in the scripts.
type state int64

const (
	closed state = iota
	opened
	halfOpen
)

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

// machine is the state of one origin. It has no lock and no clock.
type machine struct {
	places     map[string]int64 // token → when the place is free again whatever happens
	tat        int64            // GCRA's theoretical arrival time
	open       int64            // until when the breaker is open, half-open afterwards; 0: closed
	probe      string           // who probes; "": nobody
	probeUntil int64
	line       int64 // the last reservation
	mean       int64 // call time, each new one weighing a fifth; 0: not known
	window     [buckets]bucket
}

type bucket struct{ n, calls, failed int64 }

// enter is the rule; enter.lua is the same.
func (m *machine) enter(r *rules, now int64, token string, q question) verdict {
	arrival := max(sane(m.tat, now, r.burst*r.gap, 0), now) + r.gap
	until := sane(m.open, now, r.openFor, now)
	line := sane(m.line, now, r.maxWait, 0)
	v := verdict{}
	v.state, v.left = breaker(until, now)
	m.purge(now)
	if _, held := m.places[token]; held && q.attempt {
		if token == m.probe {
			v.code = grantedProbe
		}
		return v
	}
	switch {
	case v.state == opened || v.state == halfOpen && m.probe != "" && sane(m.probeUntil, now, r.hold, 0) > now:
		v.code = open
	case m.full(r, now):
		v.code = busy
	case arrival-now > r.burst*r.gap:
		v.code, v.wait = throttled, arrival-r.burst*r.gap-now
	case !q.attempt:
		v.code = busy
	default:
		m.take(r, now, token)
		if v.state == halfOpen {
			v.code = grantedProbe
			m.probe, m.probeUntil = token, now+r.hold
		}
		m.tat = arrival
		return v
	}
	if q.reserve || v.code == open {
		from := now + r.minWait
		if v.code == open {
			from = max(from, until)
		}
		m.line = min(max(line, from)+max(r.gap, m.mean/int64(r.inflight)), now+r.maxWait)
		v.wait = m.line - now
	}
	return v
}

// leave is the rule; leave.lua is the same.
func (m *machine) leave(r *rules, now int64, token string, result Result, took int64) ending {
	_, known := m.places[token]
	delete(m.places, token)
	if known {
		m.count(r, now, token, result, took)
	}
	e := ending{known: known}
	e.state, e.left = breaker(sane(m.open, now, r.openFor, now), now)
	return e
}

// count takes in how a call went.
func (m *machine) count(r *rules, now int64, token string, result Result, took int64) {
	switch {
	case took <= 0:
	case m.mean == 0:
		m.mean = took
	default:
		m.mean = (4*m.mean + took) / 5
	}
	switch {
	case m.open > 0 && token == m.probe:
		m.probe = ""
		switch result {
		case OK:
			// The endpoint is well: what was learnt while it was not is forgotten.
			*m = machine{places: m.places, mean: took}
		case Failed:
			m.open = now + r.openFor
		}
	case m.open == 0 && result != Neutral:
		n := now / r.bucket
		b := &m.window[n%buckets]
		if b.n != n {
			*b = bucket{n: n}
		}
		b.calls++
		if result != Failed {
			return
		}
		b.failed++
		var calls, failed int64
		for _, b := range m.window {
			if b.n > n-buckets && b.n <= n {
				calls, failed = calls+b.calls, failed+b.failed
			}
		}
		if calls >= r.minCalls && float64(failed)/float64(calls) >= r.ratio {
			m.open = now + r.openFor
		}
	}
}

// sane is x, unless it lies further ahead than twice what can be put there: then it is from before the clock was set back, and
// must not close an origin for an hour.
func sane(x, now, most, instead int64) int64 {
	if x > now+2*most {
		return instead
	}
	return x
}

// breaker is its state at now, and how long it stays open.
func breaker(open, now int64) (state, int64) {
	switch {
	case open == 0:
		return closed, 0
	case now < open:
		return opened, open - now
	default:
		return halfOpen, 0
	}
}

func (m *machine) take(r *rules, now int64, token string) {
	if m.places == nil {
		m.places = make(map[string]int64, r.inflight)
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

func (m *machine) full(r *rules, now int64) bool {
	n := 0
	for _, until := range m.places {
		if until <= now+2*r.hold { // beyond: from before the clock was set back
			n++
		}
	}
	return n >= r.inflight
}

// learn takes over what Redis said about the breaker.
func (m *machine) learn(now int64, s state, left int64) {
	switch s {
	case closed:
		if m.open > 0 {
			m.open, m.probe, m.window = 0, "", [buckets]bucket{}
		}
	case opened:
		m.open = now + left
	case halfOpen:
		if m.open == 0 || m.open > now {
			m.open = now
		}
	}
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }
