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

// circuit is the state of one endpoint: its circuit breaker, and the line of its reservations.
type circuit struct {
	id         string // the endpoint's, never empty
	open       int64  // when the open breaker becomes half-open; 0: closed
	probe      string // the token of the probe; "": none
	probeUntil int64
	line       int64 // the last reservation
	mean       int64 // mean call time, in which each new call weighs a fifth; 0: unknown
	window     [buckets]bucket
}

type bucket struct{ n, calls, failed int64 }

// countResult updates the mean and the breaker with a call's result.
func (e *circuit) countResult(r *rules, now int64, token string, result Result, took int64) {
	switch {
	case took <= 0:
	case e.mean == 0:
		e.mean = took
	default:
		e.mean = (4*e.mean + took) / 5
	}
	switch {
	case e.open > 0 && token == e.probe:
		e.probe = ""
		switch result {
		case OK:
			// The endpoint works again, so all that was measured before is obsolete.
			*e = circuit{id: e.id, mean: took}
		case Failed:
			e.open = now + r.openFor
		}
	case e.open == 0 && result != Neutral:
		if e.countCall(now/r.bucket, result) && e.isFailing(r, now/r.bucket) {
			e.open = now + r.openFor
		}
	}
}

// countCall counts a call in bucket n, clears buckets outside of the window, and reports whether the call failed.
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

// sumWindow returns the sums of the window that ends with bucket n.
func (e *circuit) sumWindow(n int64) (calls, failed int64) {
	for _, b := range e.window {
		if b.n <= n && b.n > n-buckets {
			calls, failed = calls+b.calls, failed+b.failed
		}
	}
	return calls, failed
}

// isFailing reports whether enough calls in the window failed to open the breaker.
func (e *circuit) isFailing(r *rules, n int64) bool {
	calls, failed := e.sumWindow(n)
	return calls >= r.minCalls && float64(failed)/float64(calls) >= r.ratio
}

// limitShare returns the limit below which the number of an endpoint's permits must be for another one, while others
// share its origin. The limit is the number of free permits, or 1 if all calls of the endpoint in the window failed.
func (e *circuit) limitShare(r *rules, now int64, free int) int {
	if calls, failed := e.sumWindow(now / r.bucket); calls > 0 && calls == failed {
		return min(free, 1)
	}
	return free
}

// breakerState returns the state of a breaker at now, and how long it stays open.
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

// adoptState adopts the breaker's state from an answer of Redis.
func (e *circuit) adoptState(now int64, s state, left int64) {
	switch s {
	case closed:
		if e.open > 0 {
			e.open, e.probe, e.window = 0, "", [buckets]bucket{}
		}
	case opened:
		e.open = now + left
	case halfOpen:
		if e.open == 0 || e.open > now {
			e.open = now
		}
	}
}
