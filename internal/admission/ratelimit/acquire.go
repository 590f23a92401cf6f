package ratelimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// firstPause is the pause between the first two tries of a waiting call to acquire a permit. Each further pause is
// longer, up to lastPause. A release in this process wakes a waiting call at once; the tries find permits that other
// processes released. The pauses are short, because a permit that is kept for a waiting call stays unused until the
// call's next try. With pauses of 100 ms, the p99 latency of calls to an endpoint whose origin also has a hanging
// endpoint was 144 ms; with 15 ms it is 88 ms.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 15 * time.Millisecond
)

// Acquire acquires a permit for a call to an endpoint of an origin. It waits for one for at most MaxWait. token must
// identify the attempt: if Acquire is repeated with the same token, it uses no further permit. The error is a
// *RefusedError, the error of ctx, ErrClosed, or names an empty argument.
func (l *Limiter) Acquire(ctx context.Context, origin, endpoint, token string) (*Permit, error) {
	return l.acquireGap(ctx, origin, endpoint, token, 0)
}

// AcquireRate grants one call of a caller with a rate of its own: at most one call in each period of 1/perSecond, for
// all workers together. token identifies the attempt, as for Acquire. AcquireRate does not wait: the error of a call
// that is too early is a *RefusedError with its return time. name must differ from all origins.
func (l *Limiter) AcquireRate(ctx context.Context, name, token string, perSecond float64) error {
	permit, err := l.acquireGap(ctx, name, name, token, max(1, int64(1e6/perSecond)))
	if permit != nil {
		permit.Release(Neutral)
	}
	return err
}

// acquireGap is Acquire with a question's gap. If gap is not 0, it does not wait for a permit.
func (l *Limiter) acquireGap(ctx context.Context, origin, endpoint, token string, gap int64) (*Permit, error) {
	if origin == "" || endpoint == "" || token == "" {
		return nil, errors.New("ratelimit: an origin, an endpoint and a token are needed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	e := l.findEndpoint(originKey(origin), endpointID(endpoint))
	token = permitToken(e.id, l.process+" "+token)
	e.users++
	_, renews := e.origin.Permits[token]
	fault, others, wait := e.fault, e.origin.countWaitingCalls(e) > 0, gap == 0 && l.isWorthWaiting(e)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		e.users--
		l.mu.Unlock()
	}()

	// If calls to the endpoint wait already, this one must not overtake them, unless it only renews its permit.
	v, permit := l.requestPermit(e, token, question{attempt: !others || renews, reserve: !wait, gap: gap})
	if permit == nil && wait && !v.code.forbidsCalls() {
		v, permit = l.waitForPermit(ctx, e, token, v, others)
	}
	switch {
	case permit == nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case permit == nil:
		return nil, newRefusedError(v, &l.rules, rand.Float64(), fault)
	case ctx.Err() != nil:
		permit.Release(Neutral)
		return nil, ctx.Err()
	}
	return permit, nil
}

// isWorthWaiting reports whether a further call to the endpoint may wait in this process, and will probably get a
// permit within l.maxWait. A call may wait if fewer than l.room calls of its endpoint and fewer than l.originRoom calls
// of its origin wait.
//
// The expected wait follows from the endpoint's mean call time, the number of waiting calls and the number of permits.
// Calls of the endpoint that have run for longer than l.maxWait may hang, so their permits do not count. If all running
// calls of the endpoint are that old, isWorthWaiting returns false. Before the first call has ended, the mean is
// unknown: isWorthWaiting then uses l.maxWait if some running call is that old, and otherwise 0.
func (l *Limiter) isWorthWaiting(e *endpoint) bool {
	o, maxWait := e.origin, toMicros(l.maxWait)
	if o.countWaitingCalls(e) >= l.room || len(o.waitingCalls) >= l.originRoom {
		return false
	}
	calls, hanging := o.countRunning(&l.rules, l.now(), e.id, maxWait)
	expected := int64(l.rules.inflight - hanging)
	if expected <= 0 || calls > 0 && calls == hanging {
		return false
	}
	mean := e.Mean
	if mean == 0 && hanging > 0 {
		mean = maxWait // no call has ended, and one hangs: assume a long mean
	}
	return mean*int64(len(o.waitingCalls)+1)/expected <= maxWait
}

// waitForPermit makes the call wait in this process for a permit, for at most l.maxWait. It does not wait if a permit
// within that time is unlikely (isWorthWaiting, isTooLate). v is the refusal with which requestPermit answered this
// call. If others is set, other calls of the endpoint were waiting then, so requestPermit did not try to acquire a
// permit for this one.
//
// If the call gets no permit, waitForPermit returns a refusal. Unless ctx ended during the wait, it has then reserved a
// return time, at which the delivery may try again.
func (l *Limiter) waitForPermit(ctx context.Context, e *endpoint, token string, v acquireAnswer,
	others bool) (acquireAnswer, *Permit) {
	o, w := e.origin, &waitingCall{endpoint: e, wake: make(chan struct{}, 1)}
	l.mu.Lock()
	if !l.isWorthWaiting(e) || l.isTooLate(v, l.maxWait) {
		l.mu.Unlock()
		return l.requestPermit(e, token, question{reserve: true})
	}
	o.waitingCalls = append(o.waitingCalls, w)
	if others && o.isFirst(w) {
		w.wake <- struct{}{} // no earlier call of the endpoint waits any longer, so this one must ask for a permit now
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		o.removeWaitingCall(w)
		l.mu.Unlock()
	}()

	began := time.Now()
	timer := time.NewTimer(l.maxWait)
	defer timer.Stop()
	next := time.NewTimer(pauseFor(v, l.firstPause))
	defer next.Stop()
	for pause := l.firstPause; ; pause = min(pause*3/2, max(lastPause, l.firstPause)) {
		woken := false
		select {
		case <-w.wake:
			woken = true
		case <-next.C:
		case <-timer.C:
			return l.requestPermit(e, token, question{attempt: l.isFirst(o, w), reserve: true})
		case <-ctx.Done():
			return v, nil
		}
		if l.isFirst(o, w) {
			var permit *Permit
			v, permit = l.requestPermit(e, token, question{attempt: true})
			if permit != nil || v.code.forbidsCalls() {
				return v, permit
			}
			if l.isTooLate(v, l.maxWait-time.Since(began)) {
				return l.requestPermit(e, token, question{reserve: true})
			}
		}
		if woken {
			l.mu.Lock()
			o.passOn(w)
			l.mu.Unlock()
		}
		next.Reset(pauseFor(v, pause))
	}
}

// isTooLate reports whether v refuses the call because of the rate, and the rate allows no call within the time d.
func (l *Limiter) isTooLate(v acquireAnswer, d time.Duration) bool {
	return v.code == throttled && v.wait > toMicros(d)
}

// pauseFor returns how long a call that was refused with v waits before its next try. If the rate refused the call, it
// waits until the rate allows one. Otherwise it waits pause ±25 %, at random, so that processes do not try at the same
// moments.
func pauseFor(v acquireAnswer, pause time.Duration) time.Duration {
	if v.code == throttled && v.wait > 0 {
		return time.Duration(v.wait) * time.Microsecond
	}
	return pause*3/4 + rand.N(pause/2)
}

func (l *Limiter) isFirst(o *origin, w *waitingCall) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return o.isFirst(w)
}

// requestPermit asks for a permit if q.attempt is set. If the call gets none and q.reserve is set, it reserves a return
// time, at which the delivery may try again. The permit is nil if the call is refused or q.attempt is false.
func (l *Limiter) requestPermit(e *endpoint, token string, q question) (v acquireAnswer, _ *Permit) {
	ask := func(m *originState, e *circuit, now int64) { v = m.acquire(&l.rules, now, e, token, q) }
	if !l.askWhileFull(e, token, q, ask) {
		l.takeStep(e, ask)
	}
	if !v.code.isGranted() {
		return v, nil
	}
	return v, &Permit{limiter: l, endpoint: e, token: token, acquiredAt: l.clock()}
}

// askWhileFull runs the step ask on this process' state only, and returns true, if other calls of this process hold all
// permits of the origin and ask reserves no return time. Waiting calls ask often, and Redis could not grant a permit
// either.
func (l *Limiter) askWhileFull(e *endpoint, token string, q question, ask func(*originState, *circuit, int64)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, now := &e.origin.originState, l.now()
	m.dropExpired(now)
	if _, held := m.Permits[token]; held || q.reserve || m.countHeld(&l.rules, now, "") < l.rules.inflight {
		return false
	}
	ask(m, &e.circuit, now)
	return true
}

// release releases the permit p and counts the result of its call. It then wakes a waiting call, which finds the permit
// free. took is the duration of the call in µs.
func (l *Limiter) release(p *Permit, result Result, took int64) {
	l.takeStep(p.endpoint, func(m *originState, e *circuit, now int64) {
		m.release(&l.rules, now, e, p.token, result, took)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if result == Failed {
		p.endpoint.fault = p.Fault
	}
	p.endpoint.origin.wakeFrom(0)
}
