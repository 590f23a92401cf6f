package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// newWatching returns a limiter that asks look how many other workers there are, and whether Redis knows this one.
// looks gets a value before each question if the test reads it. shared reports whether the limiter asks Redis for the
// permit of a new origin.
func newWatching(t *testing.T, rdb redis.Cmdable, look func() (int, bool, error), adapt func(*Config)) (l *Limiter,
	looks <-chan struct{}, shared func() bool) {
	asked := make(chan struct{})
	l = newLimits(t, rdb, adapt, func(c *Config) {
		c.Workers = func(context.Context) (int, bool, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			return look()
		}
	})
	n := 0
	return l, asked, func() bool {
		n++
		origin := fmt.Sprintf("https://%d.example", n)
		enter(t, l, origin, "token").Release(OK)
		return isStored(t, rdb, origin)
	}
}

// isStored reports whether Redis has the state of an origin.
func isStored(t *testing.T, rdb redis.Cmdable, origin string) bool {
	t.Helper()
	keys, err := rdb.Exists(t.Context(), originKey(origin)).Result()
	heraldtest.Must(t, err)
	return keys == 1
}

// TestWorkerAloneSkipsRedis: a worker that has seen no other worker for a while counts alone and sends no requests to
// Redis. When it sees another worker, or Redis does not answer, it shares its limits again. It counts its own permits
// at all times, and other workers learn of those that it acquired alone.
func TestWorkerAloneSkipsRedis(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	var others, forgotten, fails atomic.Bool
	others.Store(true)
	l, looks, shared := newWatching(t, rdb, func() (n int, known bool, err error) {
		if others.Load() {
			n = 1
		}
		if fails.Load() {
			return 0, false, errors.New("Redis does not say")
		}
		return n, !forgotten.Load(), nil
	}, func(c *Config) {
		c.Inflight, c.MaxWaiters = 2, -1
		c.lookForOthers, c.aloneAfter = 2*time.Millisecond, 10*time.Millisecond
	})
	for range 10 {
		<-looks
	}
	heraldtest.Equal(t, "it shares beside another worker", shared(), true)
	origin := "https://a.example"
	first := enter(t, l, origin, "1")

	others.Store(false)
	heraldtest.Await(t, "it counts by itself", func() bool { return !shared() })
	second := enter(t, l, origin, "2")
	refused(t, l, origin, "3", outcome.AgentBusy) // the permit that was acquired while sharing counts
	enter(t, l, "https://alone.example", "token").Release(OK)
	heraldtest.Equal(t, "Redis knows of an origin that was called alone", isStored(t, rdb, "https://alone.example"), false)

	others.Store(true)
	heraldtest.Await(t, "it shares again", shared)
	refused(t, l, origin, "4", outcome.AgentBusy) // the permits that were acquired alone count here
	other := newLimits(t, rdb, func(c *Config) { c.Inflight, c.MaxWaiters = 2, -1 })
	refused(t, other, origin, "elsewhere", outcome.AgentBusy)
	second.Release(OK)
	enter(t, other, origin, "elsewhere")
	refused(t, l, origin, "5", outcome.AgentBusy)
	first.Release(OK)

	others.Store(false)
	heraldtest.Await(t, "it counts by itself again", func() bool { return !shared() })
	fails.Store(true)
	heraldtest.Await(t, "it shares when Redis does not say", shared)
	fails.Store(false)
	heraldtest.Await(t, "it counts by itself when Redis says", func() bool { return !shared() })
	forgotten.Store(true)
	heraldtest.Await(t, "it shares when Redis does not know it", shared)
}

// TestForgottenWorkerSharesAgain: after Redis has forgotten a worker, that worker does not immediately consider itself
// the only one, because others may register later.
func TestForgottenWorkerSharesAgain(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	var forgotten atomic.Bool
	_, looks, shared := newWatching(t, rdb, func() (int, bool, error) { return 0, !forgotten.Load(), nil },
		func(c *Config) { c.lookForOthers, c.aloneAfter = time.Millisecond, time.Hour })
	heraldtest.Await(t, "it counts by itself at once", func() bool { return !shared() })
	forgotten.Store(true)
	heraldtest.Await(t, "it shares", shared)
	forgotten.Store(false)
	for range 10 {
		<-looks
	}
	heraldtest.Equal(t, "it shares until others could say that they are there", shared(), true)
}

// TestReleasedAlone: a permit that a worker releases while it counts alone is free for all when it shares its limits
// again, also if another worker has asked since. A worker that counts alone leaves out the permits of others,
// which it could not see released. When it shares its limits again, it counts them again.
func TestReleasedAlone(t *testing.T) {
	t.Parallel()
	_, a, b := twoWorkers(t, onePermit)
	p := enter(t, a, site, "1")
	a.setAlone(true)
	p.Release(OK)
	refused(t, b, site, "2", outcome.AgentBusy) // it does not know of the release yet
	a.setAlone(false)
	enter(t, a, site, "3").Release(OK)
	p = enter(t, b, site, "4")
	refused(t, a, site, "5", outcome.AgentBusy)
	a.setAlone(true)
	enter(t, a, site, "5").Release(OK)
	a.setAlone(false)
	refused(t, a, site, "6", outcome.AgentBusy)
	p.Release(OK)
	enter(t, a, site, "6")
}

// TestPermitsAloneAreTold: when a worker shares its limits again, other workers count the permits that it acquired alone or
// during an outage, and no longer those that it released, even if it does not call their origins again, or Redis did not
// know these. A released permit also ends a probe.
func TestPermitsAloneAreTold(t *testing.T) {
	t.Parallel()
	for name, count := range map[string]func(l *Limiter, alone bool){
		"alone": (*Limiter).setAlone,
		"outage": func(l *Limiter, begins bool) {
			if !begins {
				l.endOutage()
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.outage.local = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			_, a, b := twoWorkers(t, onePermit, func(cfg *Config) { cfg.MinCalls, cfg.OpenFor, cfg.Now = 1, time.Second, c.Now })
			inTime(a, b)
			count(a, true)
			p := enter(t, a, site, "1")
			count(a, false)
			refused(t, b, site, "2", outcome.AgentBusy)
			count(a, true)
			p.Release(Neutral)
			count(a, false)
			enter(t, b, site, "2").Release(Failed)

			c.Advance(time.Second)
			probe := enter(t, a, site, "3")
			refused(t, b, site, "4", outcome.BreakerOpen)
			count(a, true)
			probe.Release(OK)
			count(a, false)
			enter(t, b, site, "5").Release(OK)
		})
	}
}

// TestClockOfRedisDiffers: a worker keeps its permits when it learns that the clock of Redis is ahead of its own clock,
// or behind it, by more than PermitTTL.
func TestClockOfRedisDiffers(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			l := newLimits(t, client(t, heraldtest.RealRedis(t)), onePermit,
				func(c *Config) { c.Now = func() time.Time { return time.Now().Add(ahead) } })
			l.setAlone(true)
			p := enter(t, l, site, "1")
			l.setAlone(false)
			refused(t, l, site, "2", outcome.AgentBusy)
			p.Release(OK)
			enter(t, l, site, "3")
		})
	}
}
