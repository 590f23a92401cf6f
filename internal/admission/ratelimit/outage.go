package ratelimit

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
)

const (
	// firstTest is the time from a failure of Redis to the first test of Redis (testRedis), and between two tests. If
	// Redis fails again soon after its return (within the time steady), the time between tests doubles, up to lastTest.
	firstTest = time.Second
	lastTest  = 30 * time.Second
	steady    = 10 * time.Second
	// testTimeout bounds the first acquire and release of a test of Redis, which may have to connect. If Config.Timeout
	// is longer, it is the bound. No call to an agent waits for the test.
	testTimeout = time.Second
	// maxPendingReleases bounds the releases that wait until Redis answers again. Further ones are dropped; their
	// permits expire in Redis after PermitTTL.
	maxPendingReleases = 4096
)

// outage is this process' knowledge about an outage of Redis, which begins when a call to Redis fails. Limiter.mu
// guards it.
type outage struct {
	local bool // Redis does not answer, or there is none: this process counts alone
	// generation counts the changes of local. A failed call to Redis that began before the last change is ignored.
	generation      int
	since           time.Time        // when local last changed
	pause           time.Duration    // first value of wait: firstTest, except in tests
	wait            time.Duration    // time between two tests of Redis in the present outage
	pendingReleases []pendingRelease // releases that Redis has missed
}

// pendingRelease is the release of a permit that Redis still counts, or may count, as acquired, with the result of the
// call.
type pendingRelease struct {
	key, id, token string // the arguments of redisState.release
	result         Result
	took           int64 // µs; 0: unknown
}

// addPendingRelease stores a release that Redis has missed, for the end of the outage. If there is no outage now, it
// starts a goroutine that sends the release. The caller holds mu.
func (l *Limiter) addPendingRelease(d pendingRelease) {
	if len(l.outage.pendingReleases) < maxPendingReleases {
		l.outage.pendingReleases = append(l.outage.pendingReleases, d)
	}
	// awaitRedis sends pending releases, but it runs only during an outage.
	if !l.outage.local && !l.closed {
		l.tasks.Add(1)
		go func() {
			defer l.tasks.Done()
			l.mu.Lock()
			generation := l.outage.generation
			l.mu.Unlock()
			if err := l.sendPendingReleases(); err != nil {
				l.mu.Lock()
				l.beginOutage(generation, err)
				l.mu.Unlock()
			}
		}()
	}
}

// beginOutage starts an outage because a call to Redis failed with err. generation is the value of outage.generation
// when that call began. If outage.generation has changed since, or if there is an outage already, beginOutage does
// nothing. The caller holds mu.
func (l *Limiter) beginOutage(generation int, err error) {
	if l.outage.local || l.outage.generation != generation || l.closed {
		return
	}
	now := time.Now()
	if !l.outage.since.IsZero() && now.Sub(l.outage.since) < steady {
		l.outage.wait = min(2*l.outage.wait, lastTest)
	} else {
		l.outage.wait = l.outage.pause
	}
	l.outage.local, l.outage.since = true, now
	l.outage.generation++
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

// awaitRedis tests Redis (testRedis) after each pause, until Redis accepts scripts and has received the pending
// releases. Then it ends the outage and returns. It also returns if Close is called.
func (l *Limiter) awaitRedis(pause time.Duration) {
	for loop.Pause(l.life, pause) == nil {
		if l.testRedis() && l.sendPendingReleases() == nil && l.endOutage() {
			return
		}
	}
}

// testRedis reports whether Redis can acquire and release a permit of the origin "" in time. A PING would not show
// that Redis accepts writes. testRedis does both twice: the first time, which may have to connect, within testTimeout
// or Config.Timeout, whichever is longer; the second time within Config.Timeout.
func (l *Limiter) testRedis() bool {
	key, id := originKey(""), endpointID("")
	token := permitToken(id, "look")
	for _, timeout := range []time.Duration{max(testTimeout, l.timeout), l.timeout} {
		_, err := callRedis(l.life, l, timeout, func(ctx context.Context) (releaseAnswer, error) {
			if _, err := l.remote.acquire(ctx, key, id, token, question{attempt: true}); err != nil {
				return releaseAnswer{}, err
			}
			return l.remote.release(ctx, key, id, token, Neutral, 0)
		})
		if err != nil {
			return false
		}
	}
	return true
}

// sendPendingReleases sends the pending releases to Redis until none is left or one fails. A release that fails stays
// pending. Sending a release twice is harmless.
func (l *Limiter) sendPendingReleases() error {
	for {
		l.mu.Lock()
		if len(l.outage.pendingReleases) == 0 {
			l.mu.Unlock()
			return nil
		}
		d := l.outage.pendingReleases[0]
		l.outage.pendingReleases = l.outage.pendingReleases[1:]
		l.mu.Unlock()
		_, err := callRedis(l.life, l, l.timeout, func(ctx context.Context) (releaseAnswer, error) {
			return l.remote.release(ctx, d.key, d.id, d.token, d.result, d.took)
		})
		if err != nil {
			l.mu.Lock()
			l.outage.pendingReleases = append(l.outage.pendingReleases, d)
			l.mu.Unlock()
			return err
		}
	}
}

// endOutage ends the outage and returns true. If a further release has become pending, it returns false, and the outage
// continues.
func (l *Limiter) endOutage() bool {
	l.mu.Lock()
	if len(l.outage.pendingReleases) > 0 && !l.closed {
		l.mu.Unlock()
		return false
	}
	now := time.Now()
	took := now.Sub(l.outage.since)
	l.outage.local, l.outage.since, l.outage.pendingReleases = false, now, nil
	l.outage.generation++
	l.mu.Unlock()
	l.log.Info("ratelimit: Redis answers again; the limits are shared again", logging.About(logging.Redis),
		"after", took.Round(time.Millisecond))
	return true
}
