//go:build chaos || thirdparty

package trial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bench is what the tests of this process share: programs and a Postgres, made by the first test that asks.
type bench struct {
	mu       sync.Mutex
	dir      string
	programs Programs
	postgres *Postgres
	log      *os.File
}

var shared bench

func TestMain(m *testing.M) { goleak.VerifyTestMain(runner{m}) }

// runner ends what is shared before goroutines are looked for.
type runner struct{ m *testing.M }

func (r runner) Run() int {
	code := r.m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
		return max(code, 1)
	}
	return code
}

// source is the tree that is tried: HERALD_TRIAL_SOURCE, else the one that this test is part of.
func source(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("HERALD_TRIAL_SOURCE")
	if dir == "" {
		dir = filepath.Join("..", "..")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// get gives programs and a running Postgres.
func (b *bench) get(t testing.TB) (Programs, *Postgres) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := b.make(ctx, source(t)); err != nil {
		t.Fatal(err)
	}
	return b.programs, b.postgres
}

func (b *bench) make(ctx context.Context, source string) (err error) {
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "herald-chaos-"); err != nil {
			return err
		}
		if err = os.Chmod(b.dir, 0o711); err != nil {
			return err
		}
	}
	if b.programs.dir == "" {
		if b.programs, err = Build(ctx, source, filepath.Join(b.dir, "bin")); err != nil {
			return err
		}
	}
	if b.postgres == nil {
		if b.log, err = os.Create(filepath.Join(b.dir, "postgres.log")); err != nil {
			return err
		}
		b.postgres, err = StartPostgres(ctx, b.dir, slog.New(slog.NewTextHandler(b.log, nil)))
	}
	return err
}

func (b *bench) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if b.postgres != nil {
		errs = append(errs, b.postgres.Close(ctx), b.log.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}
