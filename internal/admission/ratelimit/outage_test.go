package ratelimit

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// freezer stops a Redis server's process and resumes it.
type freezer struct {
	t   *testing.T
	pid int
}

func newFreezer(t *testing.T, rdb redis.Cmdable) *freezer {
	t.Helper()
	info, err := rdb.Info(t.Context(), "server").Result()
	heraldtest.Must(t, err)
	f := &freezer{t: t}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "process_id:"); ok {
			f.pid, err = strconv.Atoi(strings.TrimSpace(v))
			heraldtest.Must(t, err)
		}
	}
	if f.pid <= 1 {
		t.Fatal("Redis does not report its process id")
	}
	t.Cleanup(func() { _ = syscall.Kill(f.pid, syscall.SIGCONT) }) // before heraldtest stops it
	return f
}

func (f *freezer) signal(s syscall.Signal) {
	f.t.Helper()
	heraldtest.Must(f.t, syscall.Kill(f.pid, s))
}

// outageTimeout is long enough for a loaded machine.
const outageTimeout = time.Second

// briefly makes a test's outages short: the limiter tests Redis every pause.
func briefly(l *Limiter, pause time.Duration) *Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outage.pause = pause
	return l
}

// TestRedisHangs: while Redis hangs, Acquire and Release answer from this worker's own state. Only one call waits for
// the timeout. Permits that were released during the outage are free in Redis when it resumes.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	url := heraldtest.RealRedis(t)
	rdb := client(t, url)
	freeze := newFreezer(t, rdb)
	var log heraldtest.Log
	l := briefly(newLimits(t, rdb, func(c *Config) {
		c.Timeout, c.MaxWaiters, c.Logger, c.MinCalls = outageTimeout, -1, log.Logger(slog.LevelInfo), 3
	}), 100*time.Millisecond)
	before := enterEach(t, l, site, "before", 3)
	heraldtest.Equal(t, "Redis is used", isStored(t, rdb, site), true)

	freeze.signal(syscall.SIGSTOP)
	began := time.Now()
	// Three of four permits are from Redis, and this process continues to count them.
	fourth := enter(t, l, site, "fourth")
	first := time.Since(began)
	if first < outageTimeout || first > 6*outageTimeout {
		t.Errorf("the first Acquire took %s", first)
	}
	if !l.Stats().Local {
		t.Fatal("Redis is frozen and nobody noticed")
	}
	refused(t, l, site, "fifth", outcome.AgentBusy)
	began = time.Now()
	for i := range 500 {
		enter(t, l, fmt.Sprintf("https://%d.example", i%50), fmt.Sprint("free ", i)).Release(OK)
	}
	endsWithin(t, 100*outageTimeout, "500 calls without Redis", began) // not all of them wait for the timeout
	// The breaker continues to work locally.
	callEach(t, l, "https://fails.example", "fails", 3, Failed)
	refused(t, l, "https://fails.example", "more", outcome.BreakerOpen)
	for _, p := range before {
		began := time.Now()
		p.Release(OK)
		endsWithin(t, 6*outageTimeout, "Release", began)
	}
	heraldtest.Await(t, "the log says so", func() bool { return log.Count("\n") > 0 })
	heraldtest.Equal(t, "lines in the log", log.Count("\n"), 1)

	freeze.signal(syscall.SIGCONT)
	heraldtest.Await(t, "Redis is used again", func() bool { return !l.Stats().Local })
	heraldtest.Await(t, "the log says so", func() bool { return log.Count("Redis answers again") == 1 })
	// When this worker asks again, another worker sees its permit of the outage, and not the released ones.
	enter(t, l, site, "after").Release(OK)
	other := newLimits(t, client(t, url), func(c *Config) { c.MaxWaiters = -1 })
	enterEach(t, other, site, "other", 3)
	refused(t, other, site, "fourth", outcome.AgentBusy)
	refused(t, l, site, "mine", outcome.AgentBusy) // shared again
	fourth.Release(OK)
	enter(t, other, site, "fourth")
}

// TestKilled: Redis stops, and an empty one replaces it.
func TestKilled(t *testing.T) {
	t.Parallel()
	first, url := heraldtest.RedisGate(t, heraldtest.RealRedis(t))
	first.Open()
	rdb := client(t, url)
	var log heraldtest.Log
	l := briefly(newLimits(t, rdb, func(c *Config) { c.Logger, c.Timeout = log.Logger(slog.LevelInfo), 5*time.Second }), 20*time.Millisecond)
	p := enter(t, l, site, "a")
	heraldtest.Equal(t, "Redis is used", isStored(t, rdb, site), true)
	first.Close()
	p.Release(OK)
	began := time.Now()
	callEach(t, l, site, "b", 100, OK)
	endsWithin(t, 20*time.Second, "100 calls", began)
	heraldtest.Equal(t, "it counts by itself", l.Stats().Local, true)
	first.Target = heraldtest.RedisTarget(t, heraldtest.RealRedis(t))
	first.Open()
	heraldtest.Await(t, "Redis is used again", func() bool { return !l.Stats().Local })
	enter(t, l, site, "c")
	heraldtest.Equal(t, "Redis is used", isStored(t, rdb, site), true)
	heraldtest.Await(t, "the log says so", func() bool { return log.Count("Redis answers again") == 1 })
	heraldtest.Equal(t, "lines in the log", log.Count("\n"), 2)
}

// TestFlapping: a Redis with repeated outages is retried less and less often.
func TestFlapping(t *testing.T) {
	t.Parallel()
	l := briefly(newLimits(t, client(t, heraldtest.RealRedis(t))), time.Millisecond)
	want := time.Millisecond
	for i := range 6 {
		l.mu.Lock()
		l.beginOutage(io.ErrUnexpectedEOF)
		l.beginOutage(io.ErrUnexpectedEOF) // in the same outage
		wait, local := l.outage.wait, l.outage.local
		l.mu.Unlock()
		if wait != want || !local {
			t.Fatalf("outage %d: asked again in %s, want %s; local %v", i, wait, want, local)
		}
		want *= 2
		heraldtest.Await(t, "Redis is used again", func() bool { return !l.Stats().Local })
	}
	// After a steady period, an outage begins with the first pause again.
	l.mu.Lock()
	l.outage.since = l.outage.since.Add(-steady)
	l.beginOutage(io.ErrUnexpectedEOF)
	wait := l.outage.wait
	l.mu.Unlock()
	heraldtest.Equal(t, "asked again in", wait, time.Millisecond)
}

// TestReadOnly: a Redis that refuses writes, as after a failover, is treated as down. A test of it fails, also directly
// after one that passed.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	tested := newLimits(t, rdb)
	heraldtest.Equal(t, "a test passes", tested.testRedis(), true)
	heraldtest.Must(t, rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	heraldtest.Equal(t, "a test passes on a replica", tested.testRedis() || newLimits(t, rdb).testRedis(), false)
	var log heraldtest.Log
	l := briefly(newLimits(t, rdb, func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) }), 5*time.Millisecond)
	enter(t, l, site, "a")
	heraldtest.Equal(t, "a replica took a permit", isStored(t, rdb, site), false)
	heraldtest.Await(t, "the log says why", func() bool { return log.Count("READONLY") == 1 })
	heraldtest.Must(t, rdb.ReplicaOf(t.Context(), "NO", "ONE").Err())
	heraldtest.Await(t, "Redis is used again", func() bool { return !l.Stats().Local })
	heraldtest.Await(t, "the log says so", func() bool { return log.Count("Redis answers again") == 1 })
	heraldtest.Equal(t, "lines in the log", log.Count("\n"), 2)
	enter(t, l, site, "b")
	heraldtest.Equal(t, "Redis is used", isStored(t, rdb, site), true)
}

// TestCloseDuringOutage: Close waits for running requests, but not for the end of the outage.
func TestCloseDuringOutage(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	freeze := newFreezer(t, rdb)
	l := newLimits(t, rdb, func(c *Config) { c.Timeout = outageTimeout })
	freeze.signal(syscall.SIGSTOP)
	enter(t, l, site, "a")
	began := time.Now()
	l.Close()
	endsWithin(t, 10*time.Second, "Close", began)
}
