package trial

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestRedis: Redis restarts with its data or without it, and does not answer while it is frozen. Its address stays the
// same.
func TestRedis(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "herald-trial-")
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	heraldtest.Must(t, os.Chmod(dir, 0o711)) // the server may run as another user
	r, err := startRedis(ctx, dir, slog.New(slog.DiscardHandler))
	heraldtest.MustHave(t, err)
	t.Cleanup(func() { heraldtest.Must(t, r.close(context.WithoutCancel(ctx))) })
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	get := func() string {
		t.Helper()
		text, _ := r.Client().Get(ctx, "k").Result()
		return text
	}
	must(r.Client().Set(ctx, "k", "v", 0).Err())
	must(r.Kill(ctx))
	if err := r.Client().Ping(ctx).Err(); err == nil {
		t.Error("a killed Redis answers")
	}
	must(r.Start(ctx))
	heraldtest.Equal(t, "back from its file it holds", get(), "v")
	must(r.Kill(ctx))
	must(r.StartEmpty(ctx))
	heraldtest.Equal(t, "back empty it holds", get(), "")
	must(r.Freeze(ctx))
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	if err := r.Client().Ping(short).Err(); err == nil {
		t.Error("a frozen Redis answers")
	}
	stop()
	must(r.Thaw(ctx))
	must(r.Client().Ping(ctx).Err())
}
