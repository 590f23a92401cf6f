package ratelimit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestKeys: key names contain no untrusted bytes, an origin's keys have one hash tag, all keys have a TTL, and times
// are Redis' own.
func TestKeys(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	l := newLimits(t, rdb, func(c *Config) {
		c.MaxWaiters, c.Inflight = -1, 1
		c.Now = func() time.Time { return time.Now().Add(time.Hour) }
	})
	ctx := context.Background()
	const origin, endpoint = "https://a}{stranger\r\nSET x y:places", "https://a/mcp?key=\r\nsecret "
	key, id := originKey(origin), endpointID(endpoint)
	for i := range 10 {
		p, err := l.Acquire(ctx, origin, endpoint, fmt.Sprint(i))
		heraldtest.Must(t, err)
		p.Release(Failed)
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	heraldtest.Must(t, err)
	if len(keys) != 2 {
		t.Fatalf("keys %q", keys)
	}
	for _, k := range keys {
		if k != key && k != endpointKey(key, id) || strings.Contains(k, "secret") {
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
	value, err := rdb.Get(ctx, endpointKey(key, id)).Result()
	heraldtest.Must(t, err)
	var breaker circuit
	heraldtest.Must(t, json.Unmarshal([]byte(value[strings.Index(value, "{"):]), &breaker))
	server, err := rdb.Time(ctx).Result()
	heraldtest.Must(t, err)
	if left := time.UnixMicro(breaker.OpenUntil).Sub(server); left <= 0 || left > 30*time.Second {
		t.Errorf("open for another %s by Redis' clock", left)
	}
	if originKey("https://a") == originKey("https://b") || originKey(origin) != key {
		t.Error("keys do not tell origins apart")
	}
}
