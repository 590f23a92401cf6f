package limits

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/embedded/embeddedtest"
)

// TestKeys: no stranger's bytes in key names, one hash tag for an origin, a TTL on everything, Redis' own clock.
func TestKeys(t *testing.T) {
	t.Parallel()
	rdb := client(t, embeddedtest.RealRedis(t))
	r := defaultRules()
	s := newShared(rdb, r)
	ctx := context.Background()
	const origin = "https://a}{stranger\r\nSET x y:places"
	key := keyOf(origin)
	for i := range 30 {
		token := fmt.Sprint(i)
		v, err := s.enter(ctx, key, token, question{attempt: true, reserve: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if v.code.granted() && i > 2 {
			if _, err := s.leave(ctx, key, token, Failed, second); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2 {
		t.Fatalf("keys %q", keys)
	}
	for _, k := range keys {
		if k != key && k != key+":places" {
			t.Errorf("key %q", k)
		}
		ttl, err := rdb.PTTL(ctx, k).Result()
		if err != nil || ttl <= 0 || ttl > 20*time.Minute {
			t.Errorf("%s lives for %s, %v", k, ttl, err)
		}
	}
	until, err := rdb.HGet(ctx, key, "open").Int64()
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
	if keyOf("https://a") == keyOf("https://b") || keyOf(origin) != key {
		t.Error("keys do not tell origins apart")
	}
}
