package limits

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses between two looks for a place that another process may have given back. What is given back here wakes the first in the
// line at once.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 100 * time.Millisecond
)

// Enter takes a place at an origin for a call, or waits a little for one. token names the attempt and no other: with it a
// place is found again. The error is a *RefusedError, the context's, or ErrClosed.
func (l *Limits) Enter(ctx context.Context, origin, token string) (*Pass, error) {
	if origin == "" || token == "" {
		return nil, errors.New("limits: an origin and a token are needed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	o := l.find(keyOf(origin))
	o.users++
	others, wait := len(o.line) > 0, l.worthWaiting(o)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		o.users--
		l.mu.Unlock()
	}()

	// Nobody overtakes those who wait.
	v, pass := l.ask(ctx, o, token, question{attempt: !others, reserve: !wait})
	if pass == nil && wait && v.code != open {
		v, pass = l.wait(ctx, o, token, v, others)
	}
	switch {
	case pass == nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case pass == nil:
		return nil, refuse(v, &l.rules, rand.Float64())
	case ctx.Err() != nil:
		pass.Leave(ctx, Neutral)
		return nil, ctx.Err()
	}
	return pass, nil
}

// worthWaiting says whether one more may wait here, and is likely to get a place in time as far as is known.
func (l *Limits) worthWaiting(o *origin) bool {
	n := len(o.line)
	return n < l.room && o.mean/int64(l.rules.inflight)*int64(n+1) <= micros(l.patience)
}

// wait is the waiting room. What it returns without a pass is a reservation.
func (l *Limits) wait(ctx context.Context, o *origin, token string, v verdict, others bool) (verdict, *Pass) {
	w := &waiter{wake: make(chan struct{}, 1)}
	l.mu.Lock()
	if !l.worthWaiting(o) || l.tooLate(v, l.patience) {
		l.mu.Unlock()
		return l.ask(ctx, o, token, question{reserve: true})
	}
	o.line = append(o.line, w)
	if others && o.line[0] == w {
		o.next() // those it would not overtake are gone: it has not been asked yet whether there is a place
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
		select {
		case <-w.wake:
		case <-look.C:
		case <-patience.C:
			return l.ask(ctx, o, token, question{attempt: l.first(o, w), reserve: true})
		case <-ctx.Done():
			return v, nil
		}
		if l.first(o, w) {
			var pass *Pass
			v, pass = l.ask(ctx, o, token, question{attempt: true})
			if pass != nil || v.code == open {
				return v, pass
			}
			if l.tooLate(v, l.patience-time.Since(began)) {
				return l.ask(ctx, o, token, question{reserve: true})
			}
		}
		look.Reset(pauseFor(v, pause))
	}
}

// tooLate says that the rate allows no call within d.
func (l *Limits) tooLate(v verdict, d time.Duration) bool {
	return v.code == throttled && v.wait > micros(d)
}

// pauseFor is when to look again: when the rate allows it, else after about pause, spread so that processes do not keep step.
func pauseFor(v verdict, pause time.Duration) time.Duration {
	if v.code == throttled && v.wait > 0 {
		return time.Duration(v.wait) * time.Microsecond
	}
	return pause*3/4 + rand.N(pause/2)
}

func (l *Limits) first(o *origin, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(o.line) > 0 && o.line[0] == w
}

// ask puts one question to whoever knows the answer: Redis, or this process while Redis is away.
func (l *Limits) ask(ctx context.Context, o *origin, token string, q question) (verdict, *Pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outage.local || l.closed {
		return l.askHere(o, token, q)
	}
	now := l.now()
	asked := q
	if q.attempt {
		o.purge(now)
		_, held := o.places[token]
		if !held && o.full(&l.rules, now) {
			// Whatever the others do, this process has its share.
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
		return l.remote.enter(ctx, o.key, token, asked)
	})
	l.mu.Lock()
	now = l.now()
	if err != nil {
		l.lost(age, err)
		if asked.attempt {
			delete(o.places, token)
			// It may have been given all the same.
			l.owe(debt{key: o.key, token: token})
		}
		return l.askHere(o, token, q)
	}
	o.learn(now, v.state, v.left)
	if v.code.granted() {
		o.tat = max(o.tat, now) + l.rules.gap
		return v, l.pass(o, token, true)
	}
	if asked.attempt {
		delete(o.places, token)
		o.next()
	}
	return v, nil
}

// askHere is ask without Redis. The caller holds mu.
func (l *Limits) askHere(o *origin, token string, q question) (verdict, *Pass) {
	v := o.enter(&l.rules, l.now(), token, q)
	if v.code.granted() {
		return v, l.pass(o, token, false)
	}
	return v, nil
}

func (l *Limits) pass(o *origin, token string, shared bool) *Pass {
	return &Pass{limits: l, origin: o, token: token, began: l.clock(), shared: shared}
}

// leave ends a pass: in Redis first, so that who is woken here finds the place free there too.
func (l *Limits) leave(ctx context.Context, p *Pass, result Result, took int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		end ending
		err error
	)
	told := false
	if p.shared && !l.closed {
		d := debt{key: p.origin.key, token: p.token, result: result, took: took}
		if l.outage.local {
			l.owe(d)
		} else {
			age := l.outage.age
			l.mu.Unlock()
			end, err = call(ctx, l, l.timeout, func(ctx context.Context) (ending, error) {
				return l.remote.leave(ctx, d.key, d.token, d.result, d.took)
			})
			l.mu.Lock()
			if told = err == nil; !told {
				l.lost(age, err)
				l.owe(d)
			}
		}
	}
	now := l.now()
	p.origin.leave(&l.rules, now, p.token, result, took)
	if told {
		p.origin.learn(now, end.state, end.left)
	}
	p.origin.next()
}

// call runs one operation in Redis and returns within timeout. A client that does not honour contexts is called by a goroutine,
// which ends with the client's own timeouts.
func call[T any](ctx context.Context, l *Limits, timeout time.Duration, op func(context.Context) (T, error)) (T, error) {
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
