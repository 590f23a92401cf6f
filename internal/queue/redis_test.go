package queue

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(asynq.RedisConnOpt) bool{
		"redis://h": func(o asynq.RedisConnOpt) bool { return o.(asynq.RedisClientOpt).Addr == "h:6379" },
		"redis://u:p%40w@h:7000/3": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisClientOpt)
			return c.Addr == "h:7000" && c.Username == "u" && c.Password == "p@w" && c.DB == 3
		},
		"rediss://h:1": func(o asynq.RedisConnOpt) bool { return o.(asynq.RedisClientOpt).TLSConfig.ServerName == "h" },
		"redis-socket://u:pw@/run/r.sock?db=3": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisClientOpt)
			return c.Addr == "/run/r.sock" && c.Username == "u" && c.Password == "pw" && c.DB == 3
		},
		"redis-socket:///run/r.sock": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisClientOpt)
			return c.Network == "unix" && c.Addr == "/run/r.sock"
		},
		"redis://[::1]/3": func(o asynq.RedisConnOpt) bool { return o.(asynq.RedisClientOpt).Addr == "[::1]:6379" },
		"redis-sentinel://a,b:1?master=m": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisFailoverClientOpt)
			return c.MasterName == "m" && strings.Join(c.SentinelAddrs, " ") == "a:26379 b:1" && c.DB == 0 && c.Password == ""
		},
		"redis-sentinel://u:p%40w@a,b/3?master=m": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisFailoverClientOpt)
			return c.Username == "u" && c.Password == "p@w" && c.DB == 3 && c.SentinelUsername == "" && c.SentinelPassword == "p@w"
		},
		"redis-sentinel://:pw@a?master=m&sentinel_password=s%26": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisFailoverClientOpt)
			return c.Password == "pw" && c.SentinelPassword == "s&"
		},
		"redis-cluster://[::1],[::2]:7001": func(o asynq.RedisConnOpt) bool {
			return strings.Join(o.(asynq.RedisClusterClientOpt).Addrs, " ") == "[::1]:6379 [::2]:7001"
		},
		"redis-cluster://u:p%3Aw@a,b:7001": func(o asynq.RedisConnOpt) bool {
			c := o.(asynq.RedisClusterClientOpt)
			return c.Username == "u" && c.Password == "p:w" && strings.Join(c.Addrs, " ") == "a:6379 b:7001" && c.TLSConfig == nil
		},
		"redis-clusters://a": func(o asynq.RedisConnOpt) bool { return o.(asynq.RedisClusterClientOpt).TLSConfig.ServerName == "a" },
	} {
		o, err := parseURL(secret.New(raw))
		if err != nil || !check(o) {
			t.Errorf("%s: %+v, %v", raw, o, err)
		}
	}
	for _, raw := range []string{"hunter2", "http://u:hunter2@h", "redis://u:hunter2@h/x", "redis-cluster://u:hunter2@", "redis-cluster://u:hunter2%zz@h",
		"redis-cluster://", "redis://h:port:hunter2", "redis-sentinel://u:hunter2@h", "redis-sentinel://u:hunter2@h/x?master=m"} {
		_, err := parseURL(secret.New(raw))
		if err == nil {
			t.Errorf("%s is taken", raw)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes the password: %v", raw, err)
		}
	}
	if _, err := Open(Config{}); err == nil {
		t.Error("no URL is taken")
	}
}

func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"5.0.7": true, "6.0.16": true, "6.2.0": false, "7.0.15": false, "10.1": false, "unstable": false, "6": true} {
		heraldtest.Equal(t, version, olderThan(version, 6, 2), want)
	}
}

// TestDeadlinesAreKept: a request to a frozen Redis ends with the caller's context. The driver's own timeout would be
// five seconds.
func TestDeadlinesAreKept(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"redis://h", "redis-socket:///run/r.sock"} {
		q, err := Open(Config{URL: secret.New(raw)})
		heraldtest.Must(t, err)
		if c, ok := q.rdb.(*redis.Client); !ok || !c.Options().ContextTimeoutEnabled {
			t.Errorf("%s: contexts do not end what Redis is asked", raw)
		}
		heraldtest.Must(t, q.Close())
	}
}
