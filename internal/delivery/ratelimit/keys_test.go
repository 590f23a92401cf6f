package ratelimit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/reason"
	"github.com/redis/go-redis/v9"
)

// TestKeys: key names contain no untrusted bytes, an origin's keys have one hash tag, all keys have a TTL, and times
// are Redis' own.
func TestKeys(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	r := defaultRules()
	s := newRedisState(rdb, r)
	ctx := context.Background()
	const origin = "https://a}{stranger\r\nSET x y:places"
	key, id := originKey(origin), endpointID(origin+"/mcp?key=\r\nsecret ")
	for i := range 30 {
		token := permitToken(id, fmt.Sprint(i))
		v, err := s.acquire(ctx, key, id, token, question{attempt: true, reserve: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if v.code.isGranted() && i > 2 {
			if _, err := s.release(ctx, key, id, token, Failed, second); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 3 {
		t.Fatalf("keys %q", keys)
	}
	for _, k := range keys {
		if k != key && k != key+":places" && k != endpointKey(key, id) || strings.Contains(k, "secret") {
			t.Errorf("key %q", k)
		}
		if strings.Count(k, "{") != 1 || !strings.HasPrefix(k, key) {
			t.Errorf("%q: not the origin's hash tag, or another slot of a cluster", k)
		}
		ttl, err := rdb.PTTL(ctx, k).Result()
		if err != nil || ttl <= 0 || ttl > 20*time.Minute {
			t.Errorf("%s lives for %s, %v", k, ttl, err)
		}
	}
	state, err := rdb.Get(ctx, endpointKey(key, id)).Result()
	if err != nil {
		t.Fatal(err)
	}
	until, err := strconv.ParseInt(strings.Fields(state)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	server, err := rdb.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if left := time.UnixMicro(until).Sub(server); left <= 0 || left > time.Duration(r.openFor)*time.Microsecond {
		t.Errorf("open for another %s by Redis' clock", left)
	}
	if originKey("https://a") == originKey("https://b") || originKey(origin) != key {
		t.Error("keys do not tell origins apart")
	}
}

// TestVersionBefore: permits and rate usage of a worker of the earlier version count. Its breaker state, which was the
// origin's, does not. If that worker deletes its key, only the rate usage is lost.
func TestVersionBefore(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	l := newLimits(t, rdb, func(c *Config) { c.MaxWaiters, c.Rate, c.Burst = -1, 0.01, 10 })
	ctx, key := t.Context(), originKey(site)
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	until := float64(now.Add(time.Minute).UnixMicro())
	for _, token := range tokens("0190-id", 3) {
		if err := rdb.ZAdd(ctx, permitsKey(key), redis.Z{Score: until, Member: token + ":1"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.HSet(ctx, key, "tat", now.UnixMicro(), "open", now.Add(30*time.Second).UnixMicro(), "probe", "", "mean", 1000, "b3", "1:10:10").Err(); err != nil {
		t.Fatal(err)
	}
	p := enter(t, l, site, "a")
	refused(t, l, site, "b", reason.AgentBusy)
	if n, err := rdb.ZCard(ctx, permitsKey(key)).Result(); n != 4 || err != nil {
		t.Errorf("the version before sees %d permits taken, %v", n, err)
	}
	if err := rdb.Del(ctx, key).Err(); err != nil {
		t.Fatal(err)
	}
	p.Release(ctx, OK)
	if err := rdb.HSet(ctx, key, "tat", now.Add(2000*time.Second).UnixMicro()).Err(); err != nil {
		t.Fatal(err)
	}
	refused(t, l, site, "c", reason.Throttled)
}
