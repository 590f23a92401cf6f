package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

const site = "https://agent.example"

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if l, err := New(Config{}); err == nil || l != nil {
		t.Error("no PermitTTL: taken")
	}
	l := newLimits(t, nil)
	for _, c := range [][3]string{{"", site, "a"}, {site, "", "a"}, {site, site, ""}} {
		if p, err := l.Acquire(t.Context(), c[0], c[1], c[2]); err == nil || p != nil {
			t.Errorf("%q: taken", c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Acquire(ctx, site, site, "a")
	heraldtest.Fails(t, "cancelled", err, context.Canceled)
	p := enter(t, l, site, "a")
	l.Close()
	_, err = l.Acquire(t.Context(), site, site, "b")
	heraldtest.Fails(t, "closed", err, ErrClosed)
	p.Release(OK)
}

// TestConcurrentCallersKeepInflight: 32 goroutines, in two workers if there is a Redis, never have more than Inflight
// calls in flight at one origin. All of them get permits, with one endpoint and with eight.
func TestConcurrentCallersKeepInflight(t *testing.T) {
	t.Parallel()
	for _, endpoints := range []int{1, 8} {
		t.Run(fmt.Sprint(endpoints), func(t *testing.T) {
			t.Parallel()
			hammer(t, endpoints)
		})
	}
}

func hammer(t *testing.T, endpoints int) {
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		adapt := func(c *Config) { c.MaxWaiters, c.MaxWait = 64, 30*time.Second }
		workers := []*Limiter{newLimits(t, rdb, adapt)}
		if rdb != nil {
			workers = append(workers, newLimits(t, rdb, adapt))
		}
		const goroutines, each = 32, 6
		var inflight, most, calls atomic.Int64
		var all sync.WaitGroup
		meet := make(chan struct{}) // a call lasts until it meets another one, or 2 ms
		for g := range goroutines {
			all.Go(func() {
				l := workers[g%len(workers)]
				for i := range each {
					p, err := l.Acquire(t.Context(), site, fmt.Sprint(site, g%endpoints), fmt.Sprintf("%d:%d", g, i))
					if err != nil {
						t.Error(err)
						return
					}
					n := inflight.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					calls.Add(1)
					select {
					case meet <- struct{}{}:
					case <-meet:
					case <-time.After(2 * time.Millisecond):
					}
					inflight.Add(-1)
					p.Release(OK)
				}
			})
		}
		all.Wait()
		if most.Load() > 4 || most.Load() < 2 {
			t.Errorf("%d calls were in flight at once, want at most 4, and more than one", most.Load())
		}
		heraldtest.Equal(t, "calls", calls.Load(), goroutines*each)
		for _, l := range workers {
			if s := l.Stats(); s.Local || s.Endpoints > endpoints || s.Open != 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestLeave(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLimits(t, rdb, func(c *Config) { c.Inflight, c.MaxWaiters, c.MinCalls = 1, -1, 2 })
		ctx, cancel := context.WithCancel(context.Background())
		p, err := l.Acquire(ctx, site, site, "a")
		heraldtest.Must(t, err)
		refused(t, l, site, "b", outcome.AgentBusy)
		cancel()
		q := p
		p.Release(Failed) // the caller's context has ended: the permit is released anyway
		p.Release(Failed) // counted once: the breaker stays closed
		p = enter(t, l, site, "a")
		q.Release(OK) // it does not release another permit either
		refused(t, l, site, "b", outcome.AgentBusy)
		p.Release(Failed)
		refused(t, l, site, "c", outcome.BreakerOpen)
		if s := l.Stats(); s.Open != 1 || s.HalfOpen != 0 || s.Local {
			t.Errorf("%+v", s)
		}
		if here, elsewhere := l.Breaker(site, site), l.Breaker(site, site+"/x"); here != "open" || elsewhere != "" {
			t.Errorf("%q, and of one that was not called %q", here, elsewhere)
		}
		enter(t, l, "https://another.example", "c").Release(OK)
	})
}

// TestOneProbe: a half-open breaker grants one of all the calls of two workers.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		c := newClock()
		adapt := func(cfg *Config) {
			cfg.OpenFor, cfg.MaxWaiters, cfg.PermitTTL, cfg.Now = 30*time.Second, -1, time.Minute, c.Now
		}
		a, b := workersOf(t, rdb, adapt)
		round := 0
		// rush lets 32 calls of both workers ask, and returns the permits that they got.
		rush := func() (permits []*Permit) {
			round++
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 32 {
				all.Go(func() {
					p, err := []*Limiter{a, b}[i%2].Acquire(t.Context(), site, site, fmt.Sprintf("rush %d %d", round, i))
					var r *RefusedError
					// Busy: this process was asking for as many permits as it may have.
					if err != nil && (!errors.As(err, &r) || r.Reason == outcome.Throttled) {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					if p != nil {
						permits = append(permits, p)
					}
				})
			}
			all.Wait()
			return permits
		}
		// one expects no probe before so long, and then one.
		one := func(what string, after time.Duration) *Permit {
			t.Helper()
			c.Advance(after - time.Millisecond)
			heraldtest.Equal(t, what+": calls a millisecond too early", len(rush()), 0)
			c.Advance(time.Millisecond)
			permits := rush()
			if len(permits) != 1 {
				t.Fatalf("%s: %d calls were let through, want the probe", what, len(permits))
			}
			return permits[0]
		}
		callEach(t, a, site, "fails", 10, Failed)
		refused(t, b, site, "x", outcome.BreakerOpen)
		p := one("first", 30*time.Second)
		// An answer from before may have been read last: so not at once.
		heraldtest.Await(t, "the gauge", func() bool { return p.limiter.Stats().HalfOpen == 1 })
		heraldtest.Equal(t, "p.limiter.Breaker(site, site)", p.limiter.Breaker(site, site), "half_open")
		p.Release(Failed)
		refused(t, b, site, "y", outcome.BreakerOpen)
		one("after a failed probe", 30*time.Second) // and this one's worker dies
		one("after a dead probe", time.Minute).Release(OK)
		enterEach(t, b, site, "again", 3)
		if s := b.Stats(); s.Open+s.HalfOpen != 0 || b.Breaker(site, site) != "closed" {
			t.Errorf("%+v, %q", s, b.Breaker(site, site))
		}
	})
}

// TestRefusalOfOneCall: the usual limits of unbound agents are one call at a time, and one a second.
func TestRefusalOfOneCall(t *testing.T) {
	t.Parallel()
	for code, want := range map[code]string{busy: "is busy with 1 call, or this endpoint", throttled: "are limited to 1 a second; "} {
		heraldtest.Contains(t, "the text", newRefusedError(acquireAnswer{code: code}, &rules{inflight: 1, gap: 1e6}, 0, "").Text, want)
	}
}

// TestReservations: a thousand deferred deliveries return at the rate that the origin can serve, and not all at the
// same time.
func TestReservations(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := newLimits(t, nil, func(cfg *Config) { cfg.MaxWaiters, cfg.Now = -1, c.Now })
	// 400 ms at 4 permits: one every 100 ms.
	p := enter(t, l, site, "slow")
	c.Advance(400 * time.Millisecond)
	p.Release(OK)
	enterEach(t, l, site, "holds", 4)
	waits := make([]time.Duration, 1000)
	perSecond := map[int]int{}
	for i, token := range tokens("off", len(waits)) {
		waits[i] = refused(t, l, site, token, outcome.AgentBusy).Wait
		perSecond[int(waits[i]/time.Second)]++
	}
	if !slices.IsSorted(waits) || waits[0] < time.Second || waits[0] > 1200*time.Millisecond || waits[999] > 101*time.Second {
		t.Errorf("the first comes back in %s, the last in %s, in order: %v", waits[0], waits[999], slices.IsSorted(waits))
	}
	for s, n := range perSecond {
		if n > 10 {
			t.Errorf("%d come back in second %d", n, s)
		}
	}
	// Beyond the longest wait, they are spread.
	distinct := map[time.Duration]int{}
	for _, token := range tokens("more", 3000) {
		w := refused(t, l, site, token, outcome.AgentBusy).Wait
		if w >= maxWait/2 {
			distinct[w]++
		}
	}
	for w, n := range distinct {
		if n > 3 {
			t.Errorf("%d come back in exactly %s", n, w)
		}
	}
	if len(distinct) < 900 {
		t.Errorf("%d different waits", len(distinct))
	}
}

// TestShare: one worker does not exceed Inflight, even after Redis has lost its permits. It does not count a permit that
// another worker released before that loss.
func TestShare(t *testing.T) {
	t.Parallel()
	rdb, a, b := twoWorkers(t, func(c *Config) { c.MaxWaiters = -1 })
	held := enterEach(t, a, site, "a", 4)
	refused(t, b, site, "b", outcome.AgentBusy)
	heraldtest.Must(t, rdb.FlushAll(t.Context()).Err())
	refused(t, a, site, "fifth", outcome.AgentBusy)
	refused(t, b, site, "b", outcome.AgentBusy) // a worker knows its permits, and writes them again
	for _, p := range held {
		p.Release(OK)
	}
	held = enterEach(t, b, site, "b", 4)
	refused(t, a, site, "fifth", outcome.AgentBusy) // the other worker has all of them
	for _, p := range held {
		p.Release(OK)
	}
	heraldtest.Must(t, rdb.FlushAll(t.Context()).Err())
	enterEach(t, a, site, "after", 4)
}

// TestMemory: a caller that makes up origins uses a bounded amount of memory, and origins in use are kept.
func TestMemory(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := newLimits(t, nil, onePermit, func(cfg *Config) { cfg.MaxEndpoints, cfg.Now, cfg.PermitTTL = 50, c.Now, time.Hour })
	held := enter(t, l, site, "held")
	for _, token := range tokens("s", 5000) {
		enter(t, l, "https://"+token, token).Release(OK)
		if n := l.Stats().Endpoints; n > 50 {
			t.Fatalf("%d endpoints are kept", n)
		}
	}
	refused(t, l, site, "other", outcome.AgentBusy)
	held.Release(OK)
	enter(t, l, site, "other").Release(OK)
	// Unused origins are removed over time, even below the limit.
	c.Advance(time.Hour)
	for _, token := range tokens("late", 40) {
		enter(t, l, "https://"+token, token).Release(OK)
	}
	heraldtest.Equal(t, "endpoints are kept", l.Stats().Endpoints, 40)
}

// TestPermitsOfOthersKeepNoMemory: a process forgets an endpoint that only other processes call.
func TestPermitsOfOthersKeepNoMemory(t *testing.T) {
	t.Parallel()
	_, l, other := twoWorkers(t, onePermit, func(c *Config) { c.MaxEndpoints = 1 })
	enter(t, other, site, "1")
	refused(t, l, site, "2", outcome.AgentBusy)
	enter(t, l, "https://another.example", "3")
	heraldtest.Equal(t, "endpoints", l.Stats().Endpoints, 1)
}
