package ratelimit

// buckets is the number of equal parts of the breaker's window. The window moves by one part at a time.
const buckets = 10

// state is the state of a breaker.
type state int

const (
	closed state = iota
	opened
	halfOpen
)

// circuit is the state of one endpoint to which the rules of doc.go apply: its circuit breaker, mean call time, and the
// latest time that is reserved for one of its refused deliveries to try again (Line). Times are in µs. It is stored in
// Redis as JSON.
type circuit struct {
	id        string // id of the endpoint, never empty
	OpenUntil int64  // when the open breaker becomes or became half-open; 0: it is closed
	Probe     string // token of the latest probe, which is in flight while it holds a permit; "": none
	Line      int64  // latest time that is reserved for a refused delivery to try again
	Mean      int64  // mean call time, in which each new call weighs a fifth; 0: unknown
	Window    [buckets]bucket
}

// bucket counts the calls and the failed calls in one part of the window. N is the number of that part, counted from
// time 0.
type bucket struct{ N, Calls, Failed int64 }

// countResult updates the endpoint's mean call time and its breaker with the result of a call. token is the one with
// which the call acquired its permit. If the breaker is not closed, only the result of the probe changes the breaker.
// took is the call's duration in µs. If took is 0 (unknown), the mean does not change.
func (e *circuit) countResult(r *rules, now int64, token string, result Result, took int64) {
	switch {
	case took <= 0:
	case e.Mean == 0:
		e.Mean = took
	default:
		e.Mean = (4*e.Mean + took) / 5
	}
	switch {
	case e.OpenUntil > 0 && token == e.Probe:
		e.Probe = ""
		switch result {
		case OK:
			// The endpoint works again, so earlier measurements are obsolete.
			*e = circuit{id: e.id, Mean: took}
		case Failed:
			e.OpenUntil = now + r.openFor
		}
	case e.OpenUntil == 0 && result != Neutral:
		if e.countCall(now/r.bucket, result) && e.isFailing(r, now/r.bucket) {
			e.OpenUntil = now + r.openFor
		}
	}
}

// countCall counts a call with this result, OK or Failed, in part n of the window, and clears the parts that have left
// the window. It reports whether result is Failed.
func (e *circuit) countCall(n int64, result Result) bool {
	for i := range e.Window {
		if e.Window[i].N <= n-buckets {
			e.Window[i] = bucket{}
		}
	}
	b := &e.Window[n%buckets]
	if b.N != n {
		*b = bucket{N: n}
	}
	b.Calls++
	if result == Failed {
		b.Failed++
	}
	return result == Failed
}

// sumWindow returns the number of calls and of failed calls in the window that ends with part n.
func (e *circuit) sumWindow(n int64) (calls, failed int64) {
	for _, b := range e.Window {
		if b.N <= n && b.N > n-buckets {
			calls, failed = calls+b.Calls, failed+b.Failed
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

// breakerState returns the state of a breaker: closed if openUntil (circuit.OpenUntil) is 0, open before that time, and
// half-open from then on.
func breakerState(openUntil, now int64) state {
	switch {
	case openUntil == 0:
		return closed
	case now < openUntil:
		return opened
	default:
		return halfOpen
	}
}
