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
		p := enter(t, l, fmt.Sprintf("https://%d.example", n), "token")
		defer p.Release(t.Context(), OK)
		return p.shared
	}
}

// TestWorkerAloneSkipsRedis: a worker that has seen no other worker for a while counts alone and sends no requests to
// Redis. When it sees another worker, or Redis does not answer, it shares its limits again. It counts its own permits
// at all times.
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
	heraldtest.Equal(t, "a permit was asked for in Redis", second.shared, false)
	refused(t, l, origin, "3", outcome.AgentBusy) // the permit that was acquired while sharing counts
	enter(t, l, "https://alone.example", "token").Release(t.Context(), OK)
	if keys, err := rdb.Exists(t.Context(), originKey("https://alone.example")).Result(); err != nil || keys != 0 {
		t.Errorf("Redis knows of an origin that was called alone: %d, %v", keys, err)
	}

	others.Store(true)
	heraldtest.Await(t, "it shares again", shared)
	refused(t, l, origin, "4", outcome.AgentBusy) // the permits that were acquired alone count here
	second.Release(t.Context(), OK)
	heraldtest.Equal(t, "it asks Redis", enter(t, l, origin, "5").shared, true)
	first.Release(t.Context(), OK)

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
