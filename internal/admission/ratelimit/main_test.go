package ratelimit

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func client(t testing.TB, raw string) redis.Cmdable { return heraldtest.RedisClient(t, raw) }

// newLimits returns a Limiter with a Timeout that is long enough for a loaded machine, and without a log.
func newLimits(t testing.TB, rdb redis.Scripter, adapt ...func(*Config)) *Limiter {
	t.Helper()
	cfg := Config{Redis: rdb, Timeout: 5 * time.Second, PermitTTL: time.Minute, Rate: 1e5, Logger: slog.New(slog.DiscardHandler)}
	for _, a := range adapt {
		a(&cfg)
	}
	l, err := New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(l.Close)
	return l
}

// onePermit allows one call in flight, and lets no other one wait.
func onePermit(c *Config) { c.Inflight, c.MaxWaiters = 1, -1 }

// twoWorkers returns two limiters that share a Redis.
func twoWorkers(t testing.TB, adapt ...func(*Config)) (rdb redis.Cmdable, a, b *Limiter) {
	t.Helper()
	rdb = client(t, heraldtest.RealRedis(t))
	return rdb, newLimits(t, rdb, adapt...), newLimits(t, rdb, adapt...)
}

// everywhere runs a test without Redis, with a real one and with miniredis.
func everywhere(t *testing.T, test func(t *testing.T, rdb redis.Cmdable)) {
	t.Run("alone", func(t *testing.T) { t.Parallel(); test(t, nil) })
	heraldtest.EachRedis(t, func(t *testing.T, url string) { test(t, client(t, url)) })
}

// newClock returns a clock that the test moves.
func newClock() *heraldtest.Clock {
	return heraldtest.NewClock(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
}

// inTime makes limiters use the test's clock, and ignore that of Redis. It returns the first one.
func inTime(all ...*Limiter) *Limiter {
	for _, l := range all {
		l.ignoreRedisTime = true
	}
	return all[0]
}

// workersOf returns two limiters that share a Redis, and use the test's clock. Without Redis, they are one limiter.
func workersOf(t testing.TB, rdb redis.Cmdable, adapt func(*Config)) (a, b *Limiter) {
	t.Helper()
	a = inTime(newLimits(t, rdb, adapt))
	if rdb == nil {
		return a, a
	}
	return a, inTime(newLimits(t, rdb, adapt))
}

func enter(t testing.TB, l *Limiter, origin, token string) *Permit {
	t.Helper()
	p, err := l.Acquire(t.Context(), origin, origin, token)
	if err != nil {
		t.Fatalf("enter %s: %v", token, err)
	}
	return p
}

// enterEach acquires n permits for tokens with a prefix.
func enterEach(t testing.TB, l *Limiter, origin, prefix string, n int) (permits []*Permit) {
	t.Helper()
	for _, token := range tokens(prefix, n) {
		permits = append(permits, enter(t, l, origin, token))
	}
	return permits
}

// callEach makes n calls with a result, one after the other.
func callEach(t testing.TB, l *Limiter, origin, prefix string, n int, r Result) {
	t.Helper()
	for _, token := range tokens(prefix, n) {
		enter(t, l, origin, token).Release(r)
	}
}

// refused calls Acquire, which must refuse.
func refused(t testing.TB, l *Limiter, origin, token string, why outcome.Reason) *RefusedError {
	t.Helper()
	p, err := l.Acquire(t.Context(), origin, origin, token)
	r, ok := err.(*RefusedError)
	if !ok || p != nil {
		t.Fatalf("enter %s: pass %v, error %v; want a refusal", token, p, err)
	}
	if r.Reason != why || r.Wait < minWait || r.Wait > maxWait || r.Text == "" {
		t.Fatalf("enter %s: %+v; want %s", token, r, why)
	}
	return r
}

// endsWithin checks how long an action took that began at a time.
func endsWithin(t testing.TB, limit time.Duration, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %s", what, took)
	}
}

func tokens(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}
