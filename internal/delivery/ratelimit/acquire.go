package ratelimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses between two looks for a place that another process may have given back. A place that is kept for who looks stands idle until
// then, so they are short: at 100 ms the p99 beside a hanging neighbour was 144 ms, at 15 ms it is 88 ms. What is given back here wakes
// the first in the line at once.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 15 * time.Millisecond
)

// Acquire takes a place at an origin for a call of one of its endpoints, or waits a little for one. token names the attempt and no
// other: with it a place is found again. The error is a *RefusedError, the context's, or ErrClosed.
func (l *Limiter) Acquire(ctx context.Context, origin, endpoint, token string) (*Permit, error) {
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
	e := l.find(keyOf(origin), idOf(endpoint))
	token = tokenOf(e.id, token)
	e.users++
	others, wait := e.origin.countWaiters(e) > 0, l.worthWaiting(e)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		e.users--
		l.mu.Unlock()
	}()

	// Nobody overtakes those who wait.
	v, pass := l.ask(ctx, e, token, question{attempt: !others, reserve: !wait})
	if pass == nil && wait && v.code != open {
		v, pass = l.wait(ctx, e, token, v, others)
	}
	switch {
	case pass == nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case pass == nil:
		return nil, refuse(v, &l.rules, rand.Float64())
	case ctx.Err() != nil:
		pass.Release(ctx, Neutral)
		return nil, ctx.Err()
	}
	return pass, nil
}

// worthWaiting says whether one more may wait here, and is likely to get a place in time as far as is known: from the mean, and from
// the calls that are under way, since of an endpoint that hangs none ends from which a mean could be learnt.
func (l *Limiter) worthWaiting(e *endpoint) bool {
	o := e.origin
	if o.countWaiters(e) >= l.room || len(o.line) >= l.originRoom {
		return false
	}
	turn := e.mean / int64(l.rules.inflight) * int64(len(o.line)+1)
	return max(turn, o.youngestCall(&l.rules, l.now(), e.id)) <= micros(l.patience)
}

// wait is the waiting room. What it returns without a pass is a reservation.
func (l *Limiter) wait(ctx context.Context, e *endpoint, token string, v verdict, others bool) (verdict, *Permit) {
	o, w := e.origin, &waiter{endpoint: e, wake: make(chan struct{}, 1)}
	l.mu.Lock()
	if !l.worthWaiting(e) || l.tooLate(v, l.patience) {
		l.mu.Unlock()
		return l.ask(ctx, e, token, question{reserve: true})
	}
	o.line = append(o.line, w)
	if others && o.first(w) {
		w.wake <- struct{}{} // those it would not overtake are gone: it has not been asked yet whether there is a place
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		o.quit(w)
		l.mu.Unlock()
	}()

	began := time.Now()
	patience := time.NewTimer(l.patience)
	defer patience.Stop()
	look := time.NewTimer(pauseFor(v, l.firstLook))
	defer look.Stop()
	for pause := l.firstLook; ; pause = min(pause*3/2, max(lastLook, l.firstLook)) {
		woken := false
		select {
		case <-w.wake:
			woken = true
		case <-look.C:
		case <-patience.C:
			return l.ask(ctx, e, token, question{attempt: l.first(o, w), reserve: true})
		case <-ctx.Done():
			return v, nil
		}
		if l.first(o, w) {
			var pass *Permit
			v, pass = l.ask(ctx, e, token, question{attempt: true})
			if pass != nil || v.code == open {
				return v, pass
			}
			if l.tooLate(v, l.patience-time.Since(began)) {
				return l.ask(ctx, e, token, question{reserve: true})
			}
		}
		if woken {
			l.mu.Lock()
			o.passOn(w)
			l.mu.Unlock()
		}
		look.Reset(pauseFor(v, pause))
	}
}

// tooLate says that the rate allows no call within d.
func (l *Limiter) tooLate(v verdict, d time.Duration) bool {
	return v.code == throttled && v.wait > micros(d)
}

// pauseFor is when to look again: when the rate allows it, else after about pause, spread so that processes do not keep step.
func pauseFor(v verdict, pause time.Duration) time.Duration {
	if v.code == throttled && v.wait > 0 {
		return time.Duration(v.wait) * time.Microsecond
	}
	return pause*3/4 + rand.N(pause/2)
}

func (l *Limiter) first(o *origin, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return o.first(w)
}

// ask puts one question to whoever knows the answer: Redis, or this process while Redis is away.
func (l *Limiter) ask(ctx context.Context, e *endpoint, token string, q question) (verdict, *Permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outage.local || l.closed {
		return l.askHere(e, token, q)
	}
	o, now := e.origin, l.now()
	asked := q
	if q.attempt {
		o.purge(now)
		_, held := o.places[token]
		if !held && o.full(&l.rules, now) {
			// Whatever the others do, this process has its share.
			o.missed = true
			if !q.reserve {
				return verdict{code: busy}, nil
			}
			asked.attempt = false
		} else {
			// Taken here first, so that this process keeps to its share while Redis is asked.
			o.take(&l.rules, now, token)
		}
	}
	age := l.outage.age
	l.mu.Unlock()
	// Not cancelled with the caller: a place that Redis gave must be known to have been given.
	v, err := call(context.WithoutCancel(ctx), l, l.timeout, func(ctx context.Context) (verdict, error) {
		return l.remote.enter(ctx, o.key, e.id, token, asked)
	})
	l.mu.Lock()
	now = l.now()
	if err != nil {
		l.lost(age, err)
		if asked.attempt {
			delete(o.places, token)
			// It may have been given all the same.
			l.owe(debt{key: o.key, id: e.id, token: token})
		}
		return l.askHere(e, token, q)
	}
	e.learn(now, v.state, v.left)
	if v.code.granted() {
		o.tat = max(o.tat, now) + l.rules.gap
		o.served(&l.rules, now, &e.circuit)
		return v, l.newPermit(e, token, true)
	}
	if asked.attempt {
		delete(o.places, token)
		if o.missed {
			o.missed = false
			o.wakeFrom(0)
		}
	}
	return v, nil
}

// askHere is ask without Redis. The caller holds mu.
func (l *Limiter) askHere(e *endpoint, token string, q question) (verdict, *Permit) {
	v := e.origin.enter(&l.rules, l.now(), &e.circuit, token, q)
	if v.code.granted() {
		return v, l.newPermit(e, token, false)
	}
	return v, nil
}

func (l *Limiter) newPermit(e *endpoint, token string, shared bool) *Permit {
	return &Permit{limiter: l, endpoint: e, token: token, acquiredAt: l.clock(), shared: shared}
}

// release ends a pass: in Redis first, so that who is woken here finds the place free there too.
func (l *Limiter) release(ctx context.Context, p *Permit, result Result, took int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		end ending
		err error
	)
	o, told := p.endpoint.origin, false
	if p.shared && !l.closed {
		d := debt{key: o.key, id: p.endpoint.id, token: p.token, result: result, took: took}
		if l.outage.local {
			l.owe(d)
		} else {
			age := l.outage.age
			l.mu.Unlock()
			end, err = call(ctx, l, l.timeout, func(ctx context.Context) (ending, error) {
				return l.remote.leave(ctx, d.key, d.id, d.token, d.result, d.took)
			})
			l.mu.Lock()
			if told = err == nil; !told {
				l.lost(age, err)
				l.owe(d)
			}
		}
	}
	now := l.now()
	o.leave(&l.rules, now, &p.endpoint.circuit, p.token, result, took)
	if told {
		p.endpoint.learn(now, end.state, end.left)
	}
	o.wakeFrom(0)
}

// call runs one operation in Redis and returns within timeout. A client that does not honour contexts is called by a goroutine,
// which ends with the client's own timeouts.
func call[T any](ctx context.Context, l *Limiter, timeout time.Duration, op func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return none, ErrClosed
	}
	l.tasks.Add(1)
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	if l.remote.direct {
		defer l.tasks.Done()
		defer cancel()
		return op(ctx)
	}
	done := make(chan answer, 1)
	go func() {
		defer l.tasks.Done()
		defer cancel()
		v, err := op(ctx)
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-done: // cancel comes after it, too
		return a.value, a.err
	default:
		return none, ctx.Err()
	}
}
