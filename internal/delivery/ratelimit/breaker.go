package ratelimit

// buckets is the number of parts of the breaker's window. The window moves by one part at a time.
const buckets = 10

// state is the state of a breaker. The scripts use the same numbers.
type state int64

const (
	closed state = iota
	opened
	halfOpen
)

// circuit is the state of one endpoint: its circuit breaker, and its line (the latest reserved return time). Times are
// in µs.
type circuit struct {
	id         string // the endpoint's, never empty
	openUntil  int64  // when the breaker becomes (or became) half-open; 0: it is closed
	probe      string // token of the call in flight that is the probe; "": none
	probeUntil int64
	line       int64 // the latest reserved return time
	mean       int64 // mean call time, in which each new call weighs a fifth; 0: unknown
	window     [buckets]bucket
}

// bucket counts the calls, and the failed ones of them, in one part of the window. n is the part's number since time 0.
type bucket struct{ n, calls, failed int64 }

// countResult updates the endpoint's mean call time and its breaker with the result of a call. token is the one with
// which the call acquired its permit: if the breaker is not closed, only the result of the probe changes it. took is
// the call's duration in µs; with 0 (unknown), the mean does not change.
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
			// The endpoint works again, so all that was measured before is obsolete.
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

// countCall counts a call with this result, OK or Failed, in the part of the window with number n, and clears the parts
// that have left the window. It reports whether result is Failed.
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

// sumWindow returns the numbers of calls and of failed calls in the window that ends with the part of number n.
func (e *circuit) sumWindow(n int64) (calls, failed int64) {
	for _, b := range e.window {
		if b.n <= n && b.n > n-buckets {
			calls, failed = calls+b.calls, failed+b.failed
		}
	}
	return calls, failed
}

// isFailing reports whether the window that ends with part n has at least r.minCalls calls, of which at least the share
// r.ratio failed, so that the breaker has to open.
func (e *circuit) isFailing(r *rules, n int64) bool {
	calls, failed := e.sumWindow(n)
	return calls >= r.minCalls && float64(failed)/float64(calls) >= r.ratio
}

// limitShare returns a bound for an endpoint that shares its origin: the endpoint may acquire another permit only while
// it holds fewer permits. The bound is the number of free permits, but at most 1 if all calls in the endpoint's window
// failed.
func (e *circuit) limitShare(r *rules, now int64, free int) int {
	if calls, failed := e.sumWindow(now / r.bucket); calls > 0 && calls == failed {
		return min(free, 1)
	}
	return free
}

// breakerState returns the state at now of a breaker whose circuit.openUntil is open, and for how many µs it stays open (0:
// it is not open).
func breakerState(open, now int64) (state, int64) {
	switch {
	case open == 0:
		return closed, 0
	case now < open:
		return opened, open - now
	default:
		return halfOpen, 0
	}
}

// adoptState changes this process' breaker to the state that Redis answered. left is how long it stays open, in µs.
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
