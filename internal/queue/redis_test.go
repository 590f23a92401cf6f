package queue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(o options, addresses string) bool{
		"redis://h": func(o options, at string) bool { return at == "h:6379" && o.TLSConfig == nil },
		"redis://u:p%40w@h:7000/3": func(o options, at string) bool {
			return at == "h:7000" && o.Username == "u" && o.Password == "p@w" && o.DB == 3
		},
		"rediss://h:1": func(o options, at string) bool { return o.TLSConfig.ServerName == "h" },
		"redis-socket://u:pw@/run/r.sock?db=3": func(o options, at string) bool {
			return at == "/run/r.sock" && o.Username == "u" && o.Password == "pw" && o.DB == 3
		},
		"redis://h//3":                 func(o options, at string) bool { return at == "h:6379" && o.DB == 3 },
		"redis-socket:////run/r.sock":  func(o options, at string) bool { return at == "//run/r.sock" },
		"redis-socket:///run/r@h.sock": func(o options, at string) bool { return at == "/run/r@h.sock" && o.DB == 0 },
		"redis://[::1]/3":              func(o options, at string) bool { return at == "[::1]:6379" && o.DB == 3 && !o.IsClusterMode },
		"redis-sentinel://a,b:1?master=m": func(o options, at string) bool {
			return o.MasterName == "m" && at == "a:26379 b:1" && o.DB == 0 && o.Password == ""
		},
		"redis-sentinel://[::1]:1,[::2]:2?master=m": func(o options, at string) bool { return at == "[::1]:1 [::2]:2" },
		"redis-sentinel://u:p%40w@a,b/3?master=m": func(o options, at string) bool {
			return o.Username == "u" && o.Password == "p@w" && o.DB == 3 && o.SentinelUsername == "" && o.SentinelPassword == "p@w"
		},
		"redis-sentinel://:pw@a?master=m&sentinel_password=s%26@": func(o options, at string) bool {
			return o.Password == "pw" && o.SentinelPassword == "s&@"
		},
		"redis://h?db=3": func(o options, _ string) bool { return o.DB == 3 },
		"rediss-sentinel://a,b?master=m": func(o options, at string) bool {
			return at == "a:26379 b:26379" && o.TLSConfig != nil && o.TLSConfig.ServerName == ""
		},
		"redis-cluster://[::1],[::2]:7001": func(o options, at string) bool { return at == "[::1]:6379 [::2]:7001" },
		"redis-cluster://u:p%3Aw@a,b:7001/": func(o options, at string) bool {
			return o.IsClusterMode && o.Username == "u" && o.Password == "p:w" && at == "a:6379 b:7001" && o.TLSConfig == nil
		},
		"redis-cluster://u:p/w?@a": func(o options, at string) bool { return o.Password == "p/w?" && at == "a:6379" },
		"redis-clusters://a":       func(o options, at string) bool { return o.TLSConfig.ServerName == "a" },
	} {
		o, err := parseURL(secret.New(raw))
		if err != nil || !check(o, strings.Join(o.Addrs, " ")) {
			t.Errorf("%s: %+v, %v", raw, o, err)
		}
	}
	for _, raw := range []string{"hunter2", "http://u:hunter2@h", "redis://u:hunter2@h/x", "redis-cluster://u:hunter2@", "redis-cluster://u:hunter2%zz@h",
		"redis-cluster://", "redis://h:port:hunter2", "redis-sentinel://u:hunter2@h", "redis-sentinel://u:hunter2@h/x?master=m",
		"redis://:hunter2@a,b", "redis-socket://:hunter2@", "redis-cluster://a,b/hunter2",
		"redis-cluster://a,b/1", "redis-cluster://a,b?db=1", "redis-clusters://a?sslrootcert=/nowhere", "redis://h?DB=1", "redis://:1?hunter2@h", "rediss://h?sslcert=/nowhere", "rediss-sentinel://a",
		"rediss://h?sslrootcert=/nowhere", "redis://h?sslrootcert=/hunter2", "redis-socket:///r?sslcert=/hunter2",
		"redis-cluster://h?sslkey=/hunter2", "redis://h?master=hunter2", "redis://:1#hunter2@h",
		"redis-sentinel://h?master=m&sentinel_password=hunter2%zz"} {
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
	for _, raw := range []string{"redis://h", "redis-socket:///run/r.sock", "redis-sentinel://h?master=m", "redis-cluster://h"} {
		q, err := Open(Config{URL: secret.New(raw), DialOnce: true})
		heraldtest.Must(t, err)
		kept, retries := false, 0
		switch c := q.rdb.(type) {
		case *redis.Client:
			kept, retries = c.Options().ContextTimeoutEnabled, c.Options().DialerRetries
			if network := c.Options().Network; (network == "unix") != strings.Contains(raw, "socket") {
				t.Errorf("%s: the network is %s", raw, network)
			}
		case *redis.ClusterClient:
			kept, retries = c.Options().ContextTimeoutEnabled, c.Options().DialerRetries
		}
		if !kept || retries != 1 {
			t.Errorf("%s: the end of a context does not end a call, or the client dials %d times", raw, retries)
		}
		heraldtest.Must(t, q.Close())
	}
}

// TestLanesOfFrozenRedis: counting the tasks in a Redis that accepts connections and does not answer ends with the
// context.
func TestLanesOfFrozenRedis(t *testing.T) {
	t.Parallel()
	q := openAt(t, "redis://"+heraldtest.Silent(t))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := q.Lanes(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
