package app

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLimitsOfEmbeddedRedis checks that workers share their limits through an external Redis. With an embedded Redis,
// the limits are in memory.
func TestLimitsOfEmbeddedRedis(t *testing.T) {
	t.Parallel()
	url := heraldtest.Redis(t)
	q, err := queue.Open(queue.Config{URL: secret.New(url), Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	defer q.Close()
	for _, embedded := range []bool{false, true} {
		a := &assembly{queue: q, backend: &backend.Backend{EmbeddedRedis: embedded}, log: slog.New(slog.DiscardHandler),
			cfg: load(t, "DATABASE_URL=postgres:///herald", "REDIS_URL="+url, "HERALD_KEYSET="+heraldtest.Keyset(t))}
		heraldtest.Must(t, a.openLimiters())
		if shared := a.fast != nil; shared == embedded {
			t.Errorf("embedded %t: limits are shared: %t", embedded, shared)
		}
		// On a busy machine Redis may answer after the limiter's deadline; then the limiter asks it again later.
		heraldtest.Await(t, "limits that Redis counts", func() bool {
			permit, err := a.limits.Acquire(t.Context(), "https://agent.example", "https://agent.example", "a")
			heraldtest.Must(t, err)
			permit.Release(0)
			return !a.limits.Stats().Local
		})
		a.unbound.Close()
		a.unbound, err = ratelimit.New(ratelimit.Config{PermitTTL: time.Minute, MinCalls: 1, Logger: slog.New(slog.DiscardHandler)})
		heraldtest.Must(t, err)
		permit, err := a.unbound.Acquire(t.Context(), "https://down.example", "https://down.example", "a")
		heraldtest.Must(t, err)
		permit.Release(ratelimit.Failed)
		heraldtest.Equal(t, "open breakers, with one of an unbound agent", (liveView{a, nil}).OpenBreakers(), 1)
		a.closeParts()
		a.unbound.Close()
	}
}

// TestStrangersAddressesAreGuarded checks that each client of a worker that dials addresses from strangers does so
// through the guard.
func TestStrangersAddressesAreGuarded(t *testing.T) {
	t.Parallel()
	a := &assembly{log: slog.New(slog.DiscardHandler), cfg: load(t, "DATABASE_URL=postgres:///herald", "REDIS_URL=redis://127.0.0.1:1",
		"HERALD_KEYSET="+heraldtest.Keyset(t))}
	var err error
	a.content, err = OpenContent(a.cfg, Options{Logger: a.log})
	heraldtest.Must(t, err)
	a.onClose(a.content.Close)
	defer a.closeParts()
	heraldtest.Must(t, a.openPool())
	const inward = "https://127.0.0.1/mcp"
	ctx := heraldtest.Within(t, 20*time.Second)
	_, file := a.content.Fetcher.Fetch(ctx, inward, 1<<10)
	_, call := a.pool.Call(ctx, mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: inward}, mcpcall.Request{Tool: "x"})
	_, authorization := a.content.OAuth.Resource(ctx, inward, oauth.Challenge{})
	for client, err := range map[string]error{"files": file, "calls": call, "OAuth": authorization} {
		if _, blocked := errors.AsType[*netguard.BlockedError](err); !blocked {
			t.Errorf("%s: %v", client, err)
		}
	}
}
