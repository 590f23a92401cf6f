package heraldtest

import (
	"context"
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"
)

// parseRedis returns client options for a Redis that RealRedis or MiniRedis started. The client does not retry commands.
func parseRedis(raw string) (*redis.Options, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	o := &redis.Options{ContextTimeoutEnabled: true, PoolSize: 64, MaxRetries: -1, DisableIdentity: true}
	if u.Scheme == "redis-socket" {
		o.Network, o.Addr = "unix", u.Path
	} else {
		o.Addr, o.Username = u.Host, u.User.Username()
		o.Password, _ = u.User.Password()
	}
	return o, nil
}

// RedisClient returns a client of a Redis that RealRedis or MiniRedis started. It is closed when the test ends, and it
// does not retry commands. Its type is an interface for the reason that queue.Redis gives.
func RedisClient(t testing.TB, raw string) redis.Cmdable {
	t.Helper()
	o, err := parseRedis(raw)
	Must(t, err)
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EachRedis runs a test with the URL of a real Redis and with that of miniredis.
func EachRedis(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, RealRedis(t)) })
	t.Run("miniredis", func(t *testing.T) { t.Parallel(); test(t, MiniRedis(t)) })
}

// emptyRedis leaves a Redis as if it had just started: no keys, scripts, counters, clients or eviction.
func emptyRedis(ctx context.Context, raw string) error {
	o, err := parseRedis(raw)
	if err != nil {
		return err
	}
	c := redis.NewClient(o)
	defer c.Close()
	_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ClientKillByFilter(ctx, "TYPE", "normal")
		p.ClientKillByFilter(ctx, "TYPE", "pubsub")
		p.FlushAll(ctx)
		p.ScriptFlush(ctx)
		p.ConfigResetStat(ctx)
		p.ConfigSet(ctx, "maxmemory-policy", "noeviction")
		return nil
	})
	return err
}

// silence drops what the Redis driver logs.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
