package ratelimit

// buckets is how many parts the breaker's window has: it forgets a tenth at a time.
const buckets = 10

// state is the breaker's, the same numbers as in the scripts.
type state int64

const (
	closed state = iota
	opened
	halfOpen
)

// circuit is the state of one endpoint: its circuit breaker, and what its refused calls are told.
type circuit struct {
	id         string // of the endpoint, never empty
	open       int64  // until when the breaker is open, half-open afterwards; 0: closed
	probe      string // the token that probes; "": none
	probeUntil int64
	line       int64 // the last reservation
	mean       int64 // call time, each new one weighing a fifth; 0: not known
	window     [buckets]bucket
}

type bucket struct{ n, calls, failed int64 }

// countResult takes in how a call went.
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
			// The endpoint is well: what was learnt while it was not is forgotten.
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

// countCall counts in bucket n, forgets what is older than the window, and says whether the call failed.
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

// sumWindow adds up the buckets of the window that ends with bucket n.
func (e *circuit) sumWindow(n int64) (calls, failed int64) {
	for _, b := range e.window {
		if b.n <= n && b.n > n-buckets {
			calls, failed = calls+b.calls, failed+b.failed
		}
	}
	return calls, failed
}

func (e *circuit) isFailing(r *rules, n int64) bool {
	calls, failed := e.sumWindow(n)
	return calls >= r.minCalls && float64(failed)/float64(calls) >= r.ratio
}

// limitShare is below how many permits an endpoint must hold to take one more while others share its origin: as many as
// are free. One all of whose calls failed has one.
func (e *circuit) limitShare(r *rules, now int64, free int) int {
	if calls, failed := e.sumWindow(now / r.bucket); calls > 0 && calls == failed {
		return min(free, 1)
	}
	return free
}

// breakerState is the breaker's state at now, and how long it stays open.
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

// adoptState takes over what Redis said about the breaker.
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
