package trial

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
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

func TestProcess(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	run := func(script string) *Process {
		t.Helper()
		p, err := Program{Name: "script", Path: sh, Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log")}.Start()
		heraldtest.Must(t, err)
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := run("exit 0").Wait(ctx); err != nil {
		t.Error(err)
	}
	if err := run("exit 3").Wait(ctx); err == nil {
		t.Error("exit 3 is no error")
	}
	p := run("trap 'exit 0' TERM; echo '{\"msg\":\"ready\"}'; while :; do sleep 0.01; done")
	ready := func() (bool, error) {
		for l := range p.Lines() {
			return l.Message == "ready", nil
		}
		return false, nil
	}
	heraldtest.Must(t, Until(ctx, time.Millisecond, "the script", ready))
	if err := p.Freeze(); err != nil {
		t.Error(err)
	}
	if err := p.Thaw(); err != nil {
		t.Error(err)
	}
	if err := p.Terminate(ctx); err != nil {
		t.Error(err)
	}
	deaf := run("trap '' TERM; while :; do sleep 0.01; done")
	soon, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	if err := deaf.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that does not end: %v", err)
	}
	select {
	case <-deaf.Done():
	default:
		t.Error("it was not killed")
	}
	if err := deaf.Kill(); err != nil {
		t.Errorf("a second kill: %v", err)
	}
}

func TestAwaitState(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	away := errors.New("away")
	err := Until(ctx, time.Millisecond, "nothing", func() (bool, error) { return true, away })
	if !errors.Is(err, away) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	n := 0
	if err := Until(t.Context(), time.Millisecond, "three", func() (bool, error) { n++; return n == 3, nil }); err != nil || n != 3 {
		t.Errorf("%d %v", n, err)
	}
}
