package heraldtest

import (
	"context"
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisOptions returns client options for a Redis that RealRedis or MiniRedis started. The client does not retry
// commands.
func RedisOptions(t testing.TB, raw string) *redis.Options {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	o := &redis.Options{ContextTimeoutEnabled: true, PoolSize: 64, MaxRetries: -1, DisableIdentity: true}
	if u.Scheme == "redis-socket" {
		o.Network, o.Addr = "unix", u.Path
	} else {
		o.Addr, o.Username = u.Host, u.User.Username()
		o.Password, _ = u.User.Password()
	}
	return o
}

// RedisClient returns a client with RedisOptions, closed when the test ends.
func RedisClient(t testing.TB, raw string, adapt ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := RedisOptions(t, raw)
	for _, f := range adapt {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EachRedis runs a test with the URL of a real Redis and with that of miniredis.
func EachRedis(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, RealRedis(t)) })
	t.Run("miniredis", func(t *testing.T) { t.Parallel(); test(t, MiniRedis(t)) })
}

// silence drops what the Redis driver logs.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
