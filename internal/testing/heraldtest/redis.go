package heraldtest

import (
	"context"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/redis/go-redis/v9"
)

// newRedisClient returns a client of a Redis that a test got. It does not retry commands.
func newRedisClient(raw string) (*redis.Client, error) {
	o, err := redis.ParseURL(strings.Replace(raw, "redis-socket:", "unix:", 1)) // the form of asynq
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled, o.PoolSize, o.MaxRetries, o.DisableIdentity = true, 64, -1, true
	return redis.NewClient(o), nil
}

// RedisClient returns a client of a Redis that a test got. It is closed when the test ends, and it
// does not retry commands. Its type is an interface for the reason that queue.Redis gives.
func RedisClient(t testing.TB, raw string) redis.Cmdable {
	t.Helper()
	c, err := newRedisClient(raw)
	Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EachRedis runs a test with the URL of a real Redis and with that of miniredis.
func EachRedis(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, RealRedis(t)) })
	t.Run("miniredis", func(t *testing.T) { t.Parallel(); test(t, takeRedis(t, embedded.RedisMini)) })
}

// emptyRedis leaves a Redis as if it had just started: no keys, scripts, counters, clients or eviction.
func emptyRedis(ctx context.Context, raw string) error {
	c, err := newRedisClient(raw)
	if err != nil {
		return err
	}
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
