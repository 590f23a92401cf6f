package service

import (
	"log/slog"
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
)

// TestLimitsOfEmbeddedRedis checks that workers share their limits through an external Redis. With an embedded Redis,
// the limits are in memory.
func TestLimitsOfEmbeddedRedis(t *testing.T) {
	t.Parallel()
	url := heraldtest.Redis(t)
	q, err := queue.Open(queue.Config{URL: secret.New(url), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, embedded := range []bool{false, true} {
		a := &assembly{queue: q, backend: &Backend{RedisURL: secret.New(url), EmbeddedRedis: embedded}}
		cfg := load(t, "DATABASE_URL=postgres:///herald", "REDIS_URL="+url, "HERALD_KEYSET="+heraldtest.Keyset(t))
		if err := a.openLimiters(cfg, Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		if shared := a.fast != nil; shared == embedded {
			t.Errorf("embedded %t: limits are shared: %t", embedded, shared)
		}
		permit, err := a.limits.Acquire(t.Context(), "https://agent.example", "https://agent.example", "a")
		if err != nil {
			t.Fatal(err)
		}
		permit.Release(t.Context(), 0)
		if stats := a.limits.Stats(); stats.Local {
			t.Errorf("embedded %t: %+v", embedded, stats)
		}
		a.limits.Close()
		a.unbound.Close()
		if a.fast != nil {
			_ = a.fast.Close()
		}
	}
}
