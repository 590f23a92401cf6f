package ratelimit

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/agentherald/herald/internal/admission/versioned"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
)

const (
	// firstTest is the time from a failure of Redis to the first test of Redis (testRedis), and between two tests. If
	// Redis fails again soon after its return (within the time steady), the time between tests doubles, up to lastTest.
	firstTest = time.Second
	lastTest  = 30 * time.Second
	steady    = 10 * time.Second
	// testTimeout bounds the first request of a test of Redis, which may have to connect. If Config.Timeout is longer,
	// it is the bound. No call to an agent waits for the test.
	testTimeout = time.Second
)

// outage is this process' knowledge about an outage of Redis, which begins when a request to Redis fails. Limiter.mu
// guards it.
type outage struct {
	local bool          // Redis does not answer, or there is none: this process counts alone
	since time.Time     // when local last changed
	pause time.Duration // first value of wait: firstTest, except in tests
	wait  time.Duration // time between two tests of Redis in the present outage
}

// beginOutage starts an outage because a request to Redis failed with err. If there is an outage already, it does
// nothing. The caller holds mu.
func (l *Limiter) beginOutage(err error) {
	if l.outage.local || l.closed {
		return
	}
	now := time.Now()
	if !l.outage.since.IsZero() && now.Sub(l.outage.since) < steady {
		l.outage.wait = min(2*l.outage.wait, lastTest)
	} else {
		l.outage.wait = l.outage.pause
	}
	l.outage.local, l.outage.since = true, now
	pause := l.outage.wait
	l.tasks.Add(1)
	go func() {
		defer l.tasks.Done()
		// The timeout is short (default 50 ms), so a busy Redis causes this outage too. That is not an incident, so the
		// level is info. The metric herald_limits_shared shows the outage.
		l.log.Info("ratelimit: Redis does not answer in time; until it does, this worker keeps to the limits by itself",
			logging.About(logging.Redis), "error", err, "timeout", l.timeout, "asked_again_in", pause)
		l.awaitRedis(pause)
	}()
}

// awaitRedis tests Redis (testRedis) after each pause, until Redis passes. Then it ends the outage and returns. It also
// returns if Close is called.
func (l *Limiter) awaitRedis(pause time.Duration) {
	for loop.Pause(l.life, pause) == nil {
		if l.testRedis() {
			l.endOutage()
			return
		}
	}
}

// testRedis reports whether Redis stores a new value in time. A PING would not show that Redis accepts writes.
// testRedis does it twice: the first time, which may have to connect, within testTimeout or Config.Timeout, whichever
// is longer; the second time within Config.Timeout.
func (l *Limiter) testRedis() bool {
	for _, timeout := range []time.Duration{max(testTimeout, l.timeout), l.timeout} {
		value, err := versioned.New(rand.Text()) // a state that Redis has already would not be written
		if err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(l.life, timeout)
		_, err = versioned.Replace(ctx, l.redis, testTimeout,
			versioned.Replacement{Key: originKey(value.Version), New: value})
		cancel()
		if err != nil {
			return false
		}
	}
	return true
}

// endOutage ends the outage, and commits the states that this process changed during it.
func (l *Limiter) endOutage() {
	l.mu.Lock()
	now := time.Now()
	took := now.Sub(l.outage.since)
	l.outage.local, l.outage.since = false, now
	l.mu.Unlock()
	l.log.Info("ratelimit: Redis answers again; the limits are shared again", logging.About(logging.Redis),
		"after", took.Round(time.Millisecond))
	l.commitChanges()
}
