package ratelimit

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/logging"
)

const (
	// lookAgain is how long Redis is not asked after it failed; it doubles, up to lookLater, when Redis fails again within
	// steady of its return.
	lookAgain = time.Second
	lookLater = 30 * time.Second
	steady    = 10 * time.Second
	// lookTimeout bounds the first question to a Redis that was away, which may have to connect. Nobody waits for it.
	lookTimeout = time.Second
	// maxDebts bounds what is kept for Redis; what does not fit is free there after PermitTTL.
	maxDebts = 4096
)

// outage is the state of the tie to Redis. Limiter.mu guards it.
type outage struct {
	local bool          // this process goes by itself
	age   int           // counts the changes: a late error of an earlier age says nothing
	since time.Time     // of the last change
	pause time.Duration // the first one, lookAgain but in tests
	wait  time.Duration // the present one
	debts []debt        // what Redis has not been told
}

// debt is a place that Redis counts as taken, or may, and how its call went.
type debt struct {
	key, id, token string // of the origin, the endpoint and the attempt
	result         Result
	took           int64 // µs, 0: not known
}

// owe keeps what Redis is told when it is back. The caller holds mu.
func (l *Limiter) owe(d debt) {
	if len(l.outage.debts) < maxDebts {
		l.outage.debts = append(l.outage.debts, d)
	}
	// If it came back in the meantime nobody would pay: see settle.
	if !l.outage.local && !l.closed {
		l.tasks.Add(1)
		go func() {
			defer l.tasks.Done()
			l.mu.Lock()
			age := l.outage.age
			l.mu.Unlock()
			if err := l.settle(); err != nil {
				l.mu.Lock()
				l.lost(age, err)
				l.mu.Unlock()
			}
		}()
	}
}

// lost begins an outage, unless the error is of an earlier age or one is on. The caller holds mu.
func (l *Limiter) lost(age int, err error) {
	if l.outage.local || l.outage.age != age || l.closed {
		return
	}
	now := time.Now()
	if !l.outage.since.IsZero() && now.Sub(l.outage.since) < steady {
		l.outage.wait = min(2*l.outage.wait, lookLater)
	} else {
		l.outage.wait = l.outage.pause
	}
	l.outage.local, l.outage.since = true, now
	l.outage.age++
	pause := l.outage.wait
	l.tasks.Add(1)
	go func() {
		defer l.tasks.Done()
		// It waits for milliseconds: that Redis is slow is no outage, and herald_limits_shared tells it.
		l.log.Info("ratelimit: Redis does not answer in time; until it does, this worker keeps to the limits by itself",
			logging.About(logging.Redis), "error", err, "timeout", l.timeout, "asked_again_in", pause)
		l.look(pause)
	}()
}

// look ends the outage when Redis takes scripts again and has been told what it missed.
func (l *Limiter) look(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.life.Done():
			return
		}
		if l.answers() && l.settle() == nil && l.found() {
			return
		}
		timer.Reset(pause)
	}
}

// answers takes a place at no origin and gives it back: that Redis answers a PING would not say that it can be written to. Asked
// twice, because the first question may have to connect.
func (l *Limiter) answers() bool {
	key, id := keyOf(""), idOf("")
	token := tokenOf(id, "look")
	for _, timeout := range []time.Duration{max(lookTimeout, l.timeout), l.timeout} {
		_, err := call(l.life, l, timeout, func(ctx context.Context) (ending, error) {
			if _, err := l.remote.enter(ctx, key, id, token, question{attempt: true}); err != nil {
				return ending{}, err
			}
			return l.remote.leave(ctx, key, id, token, Neutral, 0)
		})
		if err != nil {
			return false
		}
	}
	return true
}

// settle tells Redis what it missed. Told twice is harmless.
func (l *Limiter) settle() error {
	for {
		l.mu.Lock()
		if len(l.outage.debts) == 0 {
			l.mu.Unlock()
			return nil
		}
		d := l.outage.debts[0]
		l.outage.debts = l.outage.debts[1:]
		l.mu.Unlock()
		_, err := call(l.life, l, l.timeout, func(ctx context.Context) (ending, error) {
			return l.remote.leave(ctx, d.key, d.id, d.token, d.result, d.took)
		})
		if err != nil {
			l.mu.Lock()
			l.outage.debts = append(l.outage.debts, d)
			l.mu.Unlock()
			return err
		}
	}
}

// found ends the outage; false: something is owed again.
func (l *Limiter) found() bool {
	l.mu.Lock()
	if len(l.outage.debts) > 0 && !l.closed {
		l.mu.Unlock()
		return false
	}
	now := time.Now()
	took := now.Sub(l.outage.since)
	l.outage.local, l.outage.since, l.outage.debts = false, now, nil
	l.outage.age++
	l.mu.Unlock()
	l.log.Info("ratelimit: Redis answers again; the limits are shared again", logging.About(logging.Redis), "after", took.Round(time.Millisecond))
	return true
}
