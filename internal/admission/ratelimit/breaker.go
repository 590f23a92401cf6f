package ratelimit

// buckets is the number of equal parts of the breaker's window. The window moves by one part at a time.
const buckets = 10

// state is the state of a breaker. The Lua scripts use the same numbers.
type state int64

const (
	closed state = iota
	opened
	halfOpen
)

// circuit is the state of one endpoint to which the rules of doc.go apply: its circuit breaker, mean call time, and the
// latest time that is reserved for one of its refused deliveries to try again (line). Times are in µs.
type circuit struct {
	id         string // id of the endpoint, never empty
	openUntil  int64  // when the open breaker becomes or became half-open; 0: it is closed
	probe      string // token of the probe, while the probe is in flight; "": none
	probeUntil int64
	line       int64 // latest time that is reserved for a refused delivery to try again
	mean       int64 // mean call time, in which each new call weighs a fifth; 0: unknown
	window     [buckets]bucket
}

// bucket counts the calls and the failed calls in one part of the window. n is the number of that part, counted from
// time 0.
type bucket struct{ n, calls, failed int64 }

// countResult updates the endpoint's mean call time and its breaker with the result of a call. token is the one with
// which the call acquired its permit. If the breaker is not closed, only the result of the probe changes the breaker.
// took is the call's duration in µs. If took is 0 (unknown), the mean does not change.
func (e *circuit) countResult(r *rules, now int64, token string, result Result, took int64) {
	switch {
	case took <= 0:
	case e.mean == 0:
		e.mean = took
	default:
		e.mean = (4*e.mean + took) / 5
	}
	switch {
	case e.openUntil > 0 && token == e.probe:
		e.probe = ""
		switch result {
		case OK:
			// The endpoint works again, so earlier measurements are obsolete.
			*e = circuit{id: e.id, mean: took}
		case Failed:
			e.openUntil = now + r.openFor
		}
	case e.openUntil == 0 && result != Neutral:
		if e.countCall(now/r.bucket, result) && e.isFailing(r, now/r.bucket) {
			e.openUntil = now + r.openFor
		}
	}
}

// countCall counts a call with this result, OK or Failed, in part n of the window, and clears the parts that have left
// the window. It reports whether result is Failed.
func (e *circuit) countCall(n int64, result Result) bool {
	for i := range e.window {
		if e.window[i].n <= n-buckets {
			e.window[i] = bucket{}
		}
	}
	b := &e.window[n%buckets]
	if b.n != n {
		*b = bucket{n: n}
	}
	b.calls++
	if result == Failed {
		b.failed++
	}
	return result == Failed
}

// sumWindow returns the number of calls and of failed calls in the window that ends with part n.
func (e *circuit) sumWindow(n int64) (calls, failed int64) {
	for _, b := range e.window {
		if b.n <= n && b.n > n-buckets {
			calls, failed = calls+b.calls, failed+b.failed
		}
	}
	return calls, failed
}

// isFailing reports whether the breaker has to open: the window that ends with part n has at least r.minCalls calls, of
// which at least the share r.ratio failed.
func (e *circuit) isFailing(r *rules, n int64) bool {
	calls, failed := e.sumWindow(n)
	return calls >= r.minCalls && float64(failed)/float64(calls) >= r.ratio
}

// limitShare returns a bound for an endpoint whose origin other endpoints use too: the endpoint may acquire another
// permit only if it holds fewer permits than the bound. The bound is free, the number of the origin's free permits. If
// all calls in the window of the endpoint's breaker failed, it is at most 1.
func (e *circuit) limitShare(r *rules, now int64, free int) int {
	if calls, failed := e.sumWindow(now / r.bucket); calls > 0 && calls == failed {
		return min(free, 1)
	}
	return free
}

// breakerState returns the state of a breaker: closed if openUntil (circuit.openUntil) is 0, open before that time, and
// half-open from then on. It also returns for how many µs the breaker stays open; 0: it is not open.
func breakerState(openUntil, now int64) (state, int64) {
	switch {
	case openUntil == 0:
		return closed, 0
	case now < openUntil:
		return opened, openUntil - now
	default:
		return halfOpen, 0
	}
}

// adoptState sets this process' copy of the breaker to the state that Redis answered. left is how long the breaker
// stays open, in µs.
func (e *circuit) adoptState(now int64, s state, left int64) {
	switch s {
	case closed:
		if e.openUntil > 0 {
			e.openUntil, e.probe, e.window = 0, "", [buckets]bucket{}
		}
	case opened:
		e.openUntil = now + left
	case halfOpen:
		if e.openUntil == 0 || e.openUntil > now {
			e.openUntil = now
		}
	}
}
