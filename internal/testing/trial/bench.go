package trial

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// Bench is what the trials of a process share: programs and a Postgres. The first trial that asks makes them. Safe for
// concurrent use.
type Bench struct {
	mu       sync.Mutex
	dir      string
	programs Programs
	postgres *Postgres
}

// Main is heraldtest.Main, and ends the services that the tests shared.
func (b *Bench) Main(m *testing.M) { heraldtest.MainWith(m, b.close) }

// Open opens a site with the shared programs and Postgres until the test ends.
func (b *Bench) Open(ctx context.Context, t testing.TB, cfg Config) *Site {
	t.Helper()
	cfg.Programs, cfg.Postgres = b.Programs(t), b.startPostgres(t)
	s, err := Open(ctx, cfg)
	heraldtest.MustHave(t, err)
	t.Cleanup(func() { heraldtest.Must(t, s.Close()) })
	return s
}

// Programs returns programs.
func (b *Bench) Programs(t testing.TB) Programs {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.programs.dir != "" {
		return b.programs
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var err error
	if b.dir == "" {
		b.dir, err = os.MkdirTemp("", "herald-trial-")
		heraldtest.Must(t, err)
		heraldtest.Must(t, os.Chmod(b.dir, 0o711)) // the server may be another user
	}
	// The tree that is tried is the module of the working directory, if none is named.
	source := os.Getenv("HERALD_TRIAL_SOURCE")
	if source == "" {
		module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
		heraldtest.Must(t, err)
		source = filepath.Dir(string(module))
	}
	b.programs, err = Build(ctx, source, filepath.Join(b.dir, "bin"))
	heraldtest.Must(t, err)
	return b.programs
}

// startPostgres returns the shared Postgres. Programs was called before.
func (b *Bench) startPostgres(t testing.TB) *Postgres {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.postgres == nil {
		p, err := StartPostgres(heraldtest.Within(t, time.Minute), b.dir, slog.New(slog.DiscardHandler))
		heraldtest.MustHave(t, err)
		b.postgres = p
	}
	return b.postgres
}

func (b *Bench) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	http.DefaultClient.CloseIdleConnections()
	if b.dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if b.postgres != nil {
		err = b.postgres.Close(ctx)
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}
