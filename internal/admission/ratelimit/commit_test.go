package ratelimit

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFasterWorkers: a worker does not acquire a permit of another worker, even if other workers replace the origin's
// state before each of its tries.
func TestFasterWorkers(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	fast := newLimits(t, rdb, onePermit)
	p := enter(t, fast, site, "fast")
	tries := 0
	slow := newLimits(t, watched{rdb, func() {
		tries++
		fast.takeStep(p.endpoint, func(m *originState, _ *circuit, _ int64) { m.TAT++ })
	}}, onePermit)
	refused(t, slow, site, "slow", outcome.AgentBusy)
	heraldtest.Equal(t, "tries", tries, maxTries)
	heraldtest.Equal(t, "there is an outage", slow.Stats().Local, false)
	p.Release(OK)
	enter(t, slow, site, "slow").Release(OK)
}

// TestWaitingCallsWriteRarely: a try of a waiting call that is refused again leaves the states in Redis as they are,
// except for every presence/4. Otherwise the waiting calls of many workers would make each other's commits fail.
func TestWaitingCallsWriteRarely(t *testing.T) {
	t.Parallel()
	c := newClock()
	rdb, other, l := twoWorkers(t, func(cfg *Config) { cfg.Inflight, cfg.Now = 1, c.Now })
	enter(t, inTime(other, l), site, "holds")
	e := l.findEndpoint(originKey(site), endpointID(site))
	versions := map[string]bool{}
	for range 20 {
		c.Advance(firstPause)
		if v, _ := l.requestPermit(e, permitToken(e.id, l.process+" waits"), question{attempt: true}); v.code != busy {
			t.Fatalf("%+v", v)
		}
		stored, err := rdb.Get(t.Context(), originKey(site)).Result()
		heraldtest.Must(t, err)
		versions[stored] = true
	}
	heraldtest.Equal(t, "states in 100 ms", len(versions), 2)
}

// TestLateRelease: the release of an expired permit, whose origin this process has dropped from memory, leaves the
// permits that this process has acquired since.
func TestLateRelease(t *testing.T) {
	t.Parallel()
	c := newClock()
	_, l, other := twoWorkers(t, onePermit, func(cfg *Config) { cfg.MaxEndpoints, cfg.Now = 1, c.Now })
	inTime(l, other)
	expired := enter(t, l, site, "1")
	c.Advance(time.Hour)
	enter(t, l, "https://other.example", "2").Release(OK)
	enter(t, l, site, "3")
	expired.Release(OK)
	refused(t, other, site, "4", outcome.AgentBusy)
}

// TestPermitExpiresDuringRelease: a permit that expires while its release is in progress does not change the permits that
// this process acquires at that time.
func TestPermitExpiresDuringRelease(t *testing.T) {
	t.Parallel()
	rdb, c := client(t, heraldtest.RealRedis(t)), newClock()
	adapt := func(cfg *Config) { cfg.Inflight, cfg.MaxWaiters, cfg.MaxEndpoints, cfg.Now = 1, -1, 1, c.Now }
	var l *Limiter
	var releasing atomic.Bool
	var later <-chan entered
	l = inTime(newLimits(t, watched{rdb, func() {
		if !releasing.CompareAndSwap(true, false) {
			return
		}
		c.Advance(time.Hour)
		enter(t, l, "https://other.example", "2").Release(OK)
		later = goEnter(t.Context(), l, "3")
		heraldtest.Await(t, "it is granted, or waits for the release", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			o := l.origins[originKey(site)]
			return o != nil && len(o.steps)+len(o.Permits) > 0
		})
	}}, adapt))
	expires := enter(t, l, site, "1")
	releasing.Store(true)
	expires.Release(OK)
	pass(t, later)
	refused(t, inTime(newLimits(t, rdb, adapt)), site, "4", outcome.AgentBusy)
}
