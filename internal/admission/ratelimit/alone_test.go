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
)

// TestWorkerAloneSkipsRedis: a worker that has seen no other worker for a while counts alone and sends no requests to
// Redis. When it sees another worker, or Redis does not answer, it shares its limits again. It counts its own permits
// at all times.
func TestWorkerAloneSkipsRedis(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	var others, forgotten, fails atomic.Bool
	others.Store(true)
	looks := make(chan struct{})
	l := newLimits(t, rdb, func(c *Config) {
		c.Inflight, c.MaxWaiters = 2, -1
		c.lookForOthers, c.aloneAfter = 2*time.Millisecond, 10*time.Millisecond
		c.Workers = func(context.Context) (int, bool, error) {
			select {
			case looks <- struct{}{}:
			default:
			}
			n := 0
			if others.Load() {
				n = 1
			}
			if fails.Load() {
				return 0, false, errors.New("Redis does not say")
			}
			return n, !forgotten.Load(), nil
		}
	})
	n := 0
	shared := func() bool {
		n++
		p := enter(t, l, fmt.Sprintf("https://%d.example", n), "token")
		defer p.Release(t.Context(), OK)
		return p.shared
	}
	for range 10 {
		<-looks
	}
	if !shared() {
		t.Fatal("it counts by itself beside another worker")
	}
	origin := "https://a.example"
	first := enter(t, l, origin, "1")

	others.Store(false)
	heraldtest.Await(t, "it counts by itself", func() bool { return !shared() })
	second := enter(t, l, origin, "2")
	if second.shared {
		t.Error("a permit was asked for in Redis")
	}
	refused(t, l, origin, "3", outcome.AgentBusy) // the permit that was acquired while sharing counts
	if keys, err := rdb.Exists(t.Context(), originKey(fmt.Sprintf("https://%d.example", n))).Result(); err != nil || keys != 0 {
		t.Errorf("Redis knows of an origin that was called alone: %d, %v", keys, err)
	}

	others.Store(true)
	heraldtest.Await(t, "it shares again", shared)
	refused(t, l, origin, "4", outcome.AgentBusy) // the permits that were acquired alone count here
	second.Release(t.Context(), OK)
	if p := enter(t, l, origin, "5"); !p.shared {
		t.Error("it does not ask Redis")
	}
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
	looks := make(chan struct{})
	l := newLimits(t, rdb, func(c *Config) {
		c.lookForOthers, c.aloneAfter = time.Millisecond, time.Hour
		c.Workers = func(context.Context) (int, bool, error) {
			select {
			case looks <- struct{}{}:
			default:
			}
			return 0, !forgotten.Load(), nil
		}
	})
	n := 0
	shared := func() bool {
		n++
		p := enter(t, l, fmt.Sprintf("https://%d.example", n), "token")
		defer p.Release(t.Context(), OK)
		return p.shared
	}
	heraldtest.Await(t, "it counts by itself at once", func() bool { return !shared() })
	forgotten.Store(true)
	heraldtest.Await(t, "it shares", shared)
	forgotten.Store(false)
	for range 10 {
		<-looks
	}
	if !shared() {
		t.Error("it counts by itself before others could say that they are there")
	}
}
