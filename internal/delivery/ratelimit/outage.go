package ratelimit

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/logging"
)

const (
	// firstProbe is how long Redis is not asked after it failed; it doubles, up to lookLater, when Redis fails again
	// within steady of its return.
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	steady     = 10 * time.Second
	// probeTimeout bounds the first question to a Redis that was away, which may have to connect. Nobody waits for it.
	probeTimeout = time.Second
	// maxPendingReleases bounds what is kept for Redis; what does not fit is free there after PermitTTL.
	maxPendingReleases = 4096
)

// outage is the state of the tie to Redis. Limiter.mu guards it.
type outage struct {
	local           bool             // this process goes by itself
	generation      int              // counts the changes: a late error of an earlier generation says nothing
	since           time.Time        // of the last change
	pause           time.Duration    // the first one, lookAgain but in tests
	wait            time.Duration    // the present one
	pendingReleases []pendingRelease // what Redis has not been told
}

// pendingRelease is a permit that Redis counts as taken, or may, and how its call went.
type pendingRelease struct {
	key, id, token string // of the origin, the endpoint and the attempt
	result         Result
	took           int64 // µs, 0: not known
}

// addPendingRelease keeps what Redis is told when it is back. The caller holds mu.
func (l *Limiter) addPendingRelease(d pendingRelease) {
	if len(l.outage.pendingReleases) < maxPendingReleases {
		l.outage.pendingReleases = append(l.outage.pendingReleases, d)
	}
	// If it came back in the meantime nobody would send it: see sendPendingReleases.
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

// beginOutage begins an outage, unless the error is of an earlier generation or one is on. The caller holds mu.
func (l *Limiter) beginOutage(generation int, err error) {
	if l.outage.local || l.outage.generation != generation || l.closed {
		return
	}
	now := time.Now()
	if !l.outage.since.IsZero() && now.Sub(l.outage.since) < steady {
		l.outage.wait = min(2*l.outage.wait, lastProbe)
	} else {
		l.outage.wait = l.outage.pause
	}
	l.outage.local, l.outage.since = true, now
	l.outage.generation++
	pause := l.outage.wait
	l.tasks.Add(1)
	go func() {
		defer l.tasks.Done()
		// It waits for milliseconds: that Redis is slow is no outage, and herald_limits_shared tells it.
		l.log.Info("ratelimit: Redis does not answer in time; until it does, this worker keeps to the limits by itself",
			logging.About(logging.Redis), "error", err, "timeout", l.timeout, "asked_again_in", pause)
		l.awaitRedis(pause)
	}()
}

// awaitRedis ends the outage when Redis takes scripts again and has been told what it missed.
func (l *Limiter) awaitRedis(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.life.Done():
			return
		}
		if l.probeRedis() && l.sendPendingReleases() == nil && l.endOutage() {
			return
		}
		timer.Reset(pause)
	}
}

// probeRedis takes a permit at no origin and gives it back: that Redis answers a PING would not say that it can be
// written to. Asked twice, because the first question may have to connect.
func (l *Limiter) probeRedis() bool {
	key, id := originKey(""), endpointID("")
	token := permitToken(id, "look")
	for _, timeout := range []time.Duration{max(probeTimeout, l.timeout), l.timeout} {
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

// sendPendingReleases tells Redis what it missed. Told twice is harmless.
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

// endOutage ends the outage; false: a release is pending again.
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
