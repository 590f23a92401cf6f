package trial

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
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

// Main is heraldtest.Main, and ends what the tests shared.
func (b *Bench) Main(m *testing.M) { heraldtest.MainWith(m, b.close) }

// Open opens a site with the shared programs and Postgres until the test ends.
func (b *Bench) Open(ctx context.Context, t testing.TB, cfg Config) *Site {
	t.Helper()
	cfg.Programs = b.Programs(t)
	b.mu.Lock()
	err := b.startPostgres(t.Context())
	cfg.Postgres = b.postgres
	b.mu.Unlock()
	var s *Site
	if err == nil {
		s, err = Open(ctx, cfg)
	}
	heraldtest.SkipIfMissing(t, err)
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Programs returns programs.
func (b *Bench) Programs(t testing.TB) Programs {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	heraldtest.Must(t, b.buildPrograms(t.Context()))
	return b.programs
}

// findSource names the tree that is tried: HERALD_TRIAL_SOURCE, else the module of the working directory.
func findSource() (string, error) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv("HERALD_TRIAL_SOURCE"), "."))
	if err != nil || os.Getenv("HERALD_TRIAL_SOURCE") != "" {
		return dir, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod in the working directory or above it")
		}
		dir = filepath.Dir(dir)
	}
}

func (b *Bench) buildPrograms(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "herald-trial-"); err != nil {
			return err
		}
		if err = os.Chmod(b.dir, 0o711); err != nil { // the server may be another user
			return err
		}
	}
	if b.programs.dir == "" {
		source, err := findSource()
		if err != nil {
			return err
		}
		b.programs, err = Build(ctx, source, filepath.Join(b.dir, "bin"))
		return err
	}
	return nil
}

func (b *Bench) startPostgres(ctx context.Context) (err error) {
	if b.postgres != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := StartPostgres(ctx, b.dir, slog.New(slog.DiscardHandler))
	if err == nil {
		b.postgres = p
	}
	return err
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
