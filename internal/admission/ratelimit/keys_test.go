package ratelimit

import (
	"context"
	"fmt"
	"strconv"
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
	r := defaultRules()
	s := newRedisState(rdb, r)
	ctx := context.Background()
	const origin = "https://a}{stranger\r\nSET x y:places"
	key, id := originKey(origin), endpointID(origin+"/mcp?key=\r\nsecret ")
	for i := range 30 {
		token := permitToken(id, fmt.Sprint(i))
		v, err := s.acquire(ctx, key, id, token, question{attempt: true, reserve: i%2 == 0})
		heraldtest.Must(t, err)
		if v.code.isGranted() && i > 2 {
			_, err := s.release(ctx, key, id, token, Failed, second)
			heraldtest.Must(t, err)
		}
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	heraldtest.Must(t, err)
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
	heraldtest.Must(t, err)
	until, err := strconv.ParseInt(strings.Fields(state)[0], 10, 64)
	heraldtest.Must(t, err)
	server, err := rdb.Time(ctx).Result()
	heraldtest.Must(t, err)
	if left := time.UnixMicro(until).Sub(server); left <= 0 || left > time.Duration(r.openFor)*time.Microsecond {
		t.Errorf("open for another %s by Redis' clock", left)
	}
	if originKey("https://a") == originKey("https://b") || originKey(origin) != key {
		t.Error("keys do not tell origins apart")
	}
}
