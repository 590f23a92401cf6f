package heraldtest

import (
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
