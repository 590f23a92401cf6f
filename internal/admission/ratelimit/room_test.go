package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// entered is the result of Acquire in another goroutine.
type entered struct {
	pass *Permit
	err  error
}

func goEnter(ctx context.Context, l *Limiter, token string) <-chan entered {
	return goEnterAt(ctx, l, site, token)
}

func goEnterAt(ctx context.Context, l *Limiter, endpoint, token string) <-chan entered {
	ch := make(chan entered, 1)
	go func() {
		p, err := l.Acquire(ctx, site, endpoint, token)
		ch <- entered{p, err}
	}()
	return ch
}

// lineUp lets n callers wait for an endpoint, one after the other.
func lineUp(t testing.TB, l *Limiter, endpoint string, n int) (line []<-chan entered) {
	t.Helper()
	for i, token := range tokens("waits", n) {
		line = append(line, goEnterAt(t.Context(), l, endpoint, token))
		awaitWaiting(t, l, i+1)
	}
	return line
}

func awaitWaiting(t testing.TB, l *Limiter, n int) {
	t.Helper()
	heraldtest.Await(t, "it waits", func() bool { return countWaiting(l) == n })
}

// pass returns the permit of a caller that waited.
func pass(t testing.TB, ch <-chan entered) *Permit {
	t.Helper()
	e := heraldtest.Receive(t, "Acquire", ch)
	heraldtest.Must(t, e.err)
	return e.pass
}

// countWaiting returns how many callers wait for the endpoint in this process.
func countWaiting(l *Limiter) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o, ok := l.origins[originKey(site)]; ok {
		return len(o.waitingCalls)
	}
	return 0
}

// blind makes the pauses between tries very long, so that waiting calls depend on being woken.
func blind(l *Limiter) *Limiter {
	l.firstPause = time.Hour
	return l
}

// TestRoom: callers without a permit wait in order, and get the permits that are released. Callers beyond MaxWaiters
// are refused at once.
func TestRoom(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := blind(newLimits(t, rdb, func(c *Config) { c.Inflight, c.MaxWaiters, c.MaxWait = 1, 3, time.Minute }))
		p := enter(t, l, site, "holds")
		line := lineUp(t, l, site, 3)
		began := time.Now()
		refused(t, l, site, "too many", outcome.AgentBusy)
		endsWithin(t, 10*time.Second, "the refusal", began)
		for i, ch := range line {
			p.Release(OK)
			p = pass(t, ch)
			heraldtest.Equal(t, "callers that still wait", countWaiting(l), len(line)-1-i)
		}
		p.Release(OK)
	})
}

// TestNoOvertaking: a later caller does not get the permit for which an earlier one waits.
func TestNoOvertaking(t *testing.T) {
	t.Parallel()
	l := blind(newLimits(t, nil, func(c *Config) { c.Inflight, c.MaxWaiters, c.MaxWait = 1, 3, time.Minute }))
	p := enter(t, l, site, "holds")
	first := goEnter(t.Context(), l, "first")
	awaitWaiting(t, l, 1)
	// The permit is free, but the first waiting call does not know it yet.
	l.mu.Lock()
	delete(p.endpoint.origin.Permits, p.token)
	l.mu.Unlock()
	second := goEnter(t.Context(), l, "second")
	awaitWaiting(t, l, 2)
	p.Release(OK)
	pass(t, first).Release(OK)
	pass(t, second)
}

// TestRenewalOvertakes: a call renews its permit at once, even if other calls wait for one and no further one may wait.
func TestRenewalOvertakes(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := blind(newLimits(t, rdb, func(c *Config) { c.Inflight, c.MaxWaiters, c.MaxWait = 1, 1, time.Minute }))
		enter(t, l, site, "holds")
		line := lineUp(t, l, site, 1)
		enter(t, l, site, "holds").Release(OK)
		pass(t, line[0]).Release(OK)
	})
}

// TestRoomAcrossWorkers: waiting calls ask again and again, and so find a permit that another worker released.
func TestRoomAcrossWorkers(t *testing.T) {
	t.Parallel()
	_, a, b := twoWorkers(t, func(c *Config) { c.Inflight, c.MaxWait = 1, time.Minute })
	p := enter(t, a, site, "holds")
	ch := goEnter(t.Context(), b, "waits")
	awaitWaiting(t, b, 1)
	p.Release(OK)
	pass(t, ch).Release(OK)
}

// TestFullShareBlocksNoOthers: callers that wait for an endpoint with a full share block no callers of other endpoints,
// neither in this process nor in Redis.
func TestFullShareBlocksNoOthers(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := blind(newLimits(t, rdb, func(c *Config) { c.MaxWaiters, c.MaxWait = 2, time.Minute }))
		const slow, other, third = site + "/slow", site + "/other", site + "/third"
		at := func(endpoint, token string) *Permit { return pass(t, goEnterAt(t.Context(), l, endpoint, token)) }
		at(other, "first").Release(OK)
		held := []*Permit{at(slow, "0"), at(slow, "1")}
		line := lineUp(t, l, slow, 2)
		for range 3 {
			at(other, "b").Release(OK)
		}
		// Two more endpoints use one permit each, so none is free. A release then wakes a later call whose endpoint may
		// have the permit, before earlier calls whose endpoints may not.
		b, c := at(other, "c"), at(third, "d")
		next := goEnterAt(t.Context(), l, other, "e")
		awaitWaiting(t, l, 3)
		c.Release(OK)
		b.Release(OK)
		pass(t, next).Release(OK)
		for _, p := range held {
			p.Release(OK)
		}
		for _, ch := range line {
			pass(t, ch).Release(OK)
		}
	})
}

// TestWaitIsBounded: a caller that waits in vain gets a time to return. A caller whose context ends leaves without a
// permit.
func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(t, nil, func(c *Config) { c.Inflight, c.MaxWaiters, c.MaxWait = 1, 3, 2*time.Second })
		p := enter(t, l, site, "holds")
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		first := goEnter(ctx, l, "first")
		awaitWaiting(t, l, 1)
		second := goEnter(t.Context(), l, "second")
		cancel()
		if e := heraldtest.Receive(t, "Acquire", first); !errors.Is(e.err, context.Canceled) {
			t.Fatalf("%+v", e)
		}
		var r *RefusedError
		if e := heraldtest.Receive(t, "Acquire", second); !errors.As(e.err, &r) || r.Reason != outcome.AgentBusy {
			t.Fatalf("%+v", e)
		}
		heraldtest.Equal(t, "the wait", time.Since(began).Round(time.Second), 2*time.Second)
		heraldtest.Equal(t, "callers that still wait", countWaiting(l), 0)
		p.Release(OK)
		enter(t, l, site, "third").Release(OK)
	})
}

// TestSlowCallsRefuseWaiters: if calls are known to take long, or the first one hangs, callers are refused at once.
func TestSlowCallsRefuseWaiters(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		c := newClock()
		l := newLimits(t, rdb, func(cfg *Config) { cfg.Inflight, cfg.MaxWaiters, cfg.MaxWait, cfg.Now = 1, 3, 20*time.Second, c.Now })
		p := enter(t, l, site, "a")
		c.Advance(21 * time.Second)
		began := time.Now()
		refused(t, l, site, "beside one that hangs", outcome.AgentBusy)
		c.Advance(4 * time.Second)
		p.Release(OK)
		enter(t, l, site, "b")
		if r := refused(t, l, site, "c", outcome.AgentBusy); r.Wait < 20*time.Second {
			t.Errorf("%+v", r)
		}
		endsWithin(t, 10*time.Second, "the refusal", began)
	})
}

// TestThrottled: Acquire waits for the rate limit if the wait is short, and refuses if it is long.
func TestThrottled(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLimits(t, rdb, func(c *Config) { c.Rate, c.Burst, c.MaxWait = 20, 1, 10*time.Second })
		began := time.Now()
		callEach(t, l, site, "t", 5, OK)
		if took := time.Since(began); took < 195*time.Millisecond {
			t.Errorf("5 calls at 20 a second took %s", took)
		}
		slow := newLimits(t, rdb, func(c *Config) { c.Rate, c.Burst, c.MaxWait = 0.02, 1, 20*time.Second })
		enter(t, slow, "https://slow.example", "a").Release(OK)
		began = time.Now()
		r := refused(t, slow, "https://slow.example", "b", outcome.Throttled)
		endsWithin(t, 10*time.Second, "the refusal", began)
		if r.Wait < 50*time.Second { // one every 50 s
			t.Errorf("%+v", r)
		}
	})
}

// TestAcquireRate checks that two workers together apply the rate of an agent, without a burst. Refused calls get
// increasing return times. The calls for other agents are not refused.
func TestAcquireRate(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		clock := newClock()
		first, second := workersOf(t, rdb, func(c *Config) { c.Now = clock.Now })
		for i, step := range []struct {
			after time.Duration
			by    *Limiter
			agent string
			wait  time.Duration // 0: granted
		}{
			{0, first, "a", 0}, {0, second, "a", 11 * time.Second}, {0, first, "a", 21 * time.Second}, {0, second, "b", 0},
			{9 * time.Second, first, "a", 22 * time.Second}, {time.Second, second, "a", 0}, {9 * time.Second, first, "a", 22 * time.Second},
			{time.Minute, first, "a", 0}, {0, second, "a", 11 * time.Second},
		} {
			clock.Advance(step.after)
			err := step.by.AcquireRate(t.Context(), "rate:"+step.agent, fmt.Sprint("t ", i), 0.1)
			if r, ok := errors.AsType[*RefusedError](err); ok != (step.wait > 0) || r != nil && (r.Reason != outcome.Throttled || r.Wait != step.wait) || r == nil && err != nil {
				t.Errorf("step %d: %+v, want %s", i, err, step.wait)
			}
		}
	})
}

// TestOpenBreakerRefusesWaiters: when the breaker opens, waiting callers are refused at once.
func TestOpenBreakerRefusesWaiters(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := blind(newLimits(t, rdb, func(c *Config) { c.Inflight, c.MinCalls, c.MaxWait, c.MaxWaiters = 1, 1, time.Minute, 3 }))
		p := enter(t, l, site, "fails")
		line := lineUp(t, l, site, 3)
		began := time.Now()
		p.Release(Failed)
		for _, ch := range line {
			var r *RefusedError
			if e := heraldtest.Receive(t, "Acquire", ch); !errors.As(e.err, &r) || r.Reason != outcome.BreakerOpen || r.Wait < 29*time.Second {
				t.Errorf("%+v", e)
			}
		}
		endsWithin(t, 10*time.Second, "the refusal", began)
	})
}

// TestCancelledWhileAsking: a permit that arrives after its caller was cancelled is released.
func TestCancelledWhileAsking(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var asked atomic.Int64
	l := newLimits(t, watched{client(t, heraldtest.RealRedis(t)), func() {
		if asked.Add(1) == 1 {
			cancel()
		}
	}}, onePermit)
	if p, err := l.Acquire(ctx, site, site, "a"); !errors.Is(err, context.Canceled) || p != nil {
		t.Fatalf("%v, %v", p, err)
	}
	if asked.Load() < 2 {
		t.Fatal("Redis was not told")
	}
	enter(t, l, site, "b").Release(OK)
}

// watched calls before for each script that Redis has loaded.
type watched struct {
	redis.Scripter
	before func()
}

func (w watched) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	w.before()
	return w.Scripter.EvalSha(ctx, sha, keys, args...)
}
