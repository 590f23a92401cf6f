package delivery

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// TestRefreshTokenOutlivesPostgres, on a real Postgres and Redis: Postgres stops answering while the authorization
// server replaces the refresh token, and the worker dies. The next worker uses the refresh token from Redis.
func TestRefreshTokenOutlivesPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := guarded(t, oauthtest.Options{RotateRefresh: true})
	away := &absent{TokenRecords: records.New(w.store)}
	first := w.authorizing(func(c *auth.Config) { c.Spool, c.Records, c.SaveTimeout = w.queue.Renewals(), away, 2*time.Second })
	id := w.guardedBy(s, loginFor(s, ""))
	ctx := heraldtest.Within(t, 60*time.Second)
	s.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if !s.ToAgent(r) && r.Method == http.MethodPost {
			away.silent.Store(true)
		}
		return false
	})
	credential := must(first.executor.Authorizer.Authorize(ctx, w.probing(id), endpointAt(s.AgentURL)))
	s.Answer(nil)
	heraldtest.Equal(t, "renewals in Redis", w.spools(ctx), 1)
	w.exec(`UPDATE herald.agent_mcp_access SET renewing_until = now() - interval '1 second' WHERE agent_id = $1::numeric`, id.String()) // it died

	w.serve(w.authorizing(func(c *auth.Config) { c.Spool = w.queue.Renewals() }))
	if n := w.deliver(id); n != 1 || len(s.TokenRequests()) != 1 {
		t.Errorf("%d attempts, %d token requests", n, len(s.TokenRequests()))
	}
	heraldtest.Equal(t, "renewals in Redis", w.spools(ctx), 0)
	for range 2 {
		s.Revoke()
		heraldtest.Equal(t, "attempts", w.deliver(id), 1)
	}
	for i, r := range s.TokenRequests() {
		heraldtest.Equal(t, fmt.Sprint("the answer to the refresh token of request ", i), r.Status, http.StatusOK)
	}
	// The first worker's token is older than the stored one.
	away.silent.Store(false)
	s.Revoke()
	err := first.executor.Authorizer.WithTokenRefresh(ctx, credential, func(ctx context.Context, e mcpcall.Endpoint) error {
		if credential.Refreshed() {
			return nil // the token that it would be sent was revoked, too
		}
		_, err := first.pool.Tools(ctx, e, true)
		return err
	})
	if err != nil || !credential.Refreshed() {
		t.Error(credential.Refreshed(), err)
	}
	heraldtest.Equal(t, "the last answer", s.TokenRequests()[len(s.TokenRequests())-1].Status, http.StatusOK)
	w.noCanary(first)
}

// spools counts the renewals in Redis.
func (w *world) spools(ctx context.Context) int {
	w.t.Helper()
	rdb := w.queue.Client(10 * time.Second)
	defer func() { _ = rdb.Close() }()
	return len(must(rdb.Keys(ctx, "herald:renewal:*").Result()))
}

// absent is a store that does not answer while it is silent: a save waits until its context ends.
type absent struct {
	auth.TokenRecords
	silent atomic.Bool
}

func (a *absent) SaveRenewal(ctx context.Context, r records.Renewal, x records.Access, credential []byte) error {
	if a.silent.Load() {
		<-ctx.Done()
		return fmt.Errorf("save: %w", ctx.Err())
	}
	return a.TokenRecords.SaveRenewal(ctx, r, x, credential)
}
