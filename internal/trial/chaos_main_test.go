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

	"github.com/agentherald/herald/internal/devnet/devnettest"
	"go.uber.org/goleak"
)

// bench contains the programs and the Postgres that the tests of this process share. The first test that needs them
// makes them.
type bench struct {
	mu       sync.Mutex
	dir      string
	programs Programs
	before   Programs // of the commit
	commit   string
	postgres *Postgres
	log      *os.File
}

var shared bench

func TestMain(m *testing.M) { goleak.VerifyTestMain(runner{m}, devnettest.Leftovers()...) }

// runner stops the shared services before goroutines are checked.
type runner struct{ m *testing.M }

func (r runner) Run() int {
	code := r.m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
		return max(code, 1)
	}
	return code
}

// source returns the tree under test: HERALD_TRIAL_SOURCE, or else the tree of this test.
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

// get returns programs and a running Postgres.
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

// getBefore returns the programs of an older commit, and its id: HERALD_TRIAL_BEFORE (make chaos BEFORE=…), or else the
// last commit without the newest migration.
func (b *bench) getBefore(t *testing.T) (before Programs, commit string) {
	t.Helper()
	b.get(t) // this creates the folder
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := b.makeBefore(ctx, source(t))
	skipWithoutHistory(t, err)
	if err != nil {
		t.Fatalf("the programs of an older commit cannot be built: %v (BEFORE= names another commit, "+
			"HERALD_TRIAL_NO_HISTORY=1 leaves this row out)", err)
	}
	return b.before, b.commit
}

func (b *bench) makeBefore(ctx context.Context, source string) (err error) {
	if b.before.dir != "" {
		return nil
	}
	if name := os.Getenv("HERALD_TRIAL_BEFORE"); name != "" {
		b.commit, err = ResolveCommit(ctx, source, name)
	} else {
		b.commit, _, err = BeforeMigration(ctx, source)
	}
	if err != nil {
		return err
	}
	tree := filepath.Join(b.dir, "before")
	if err = Export(ctx, source, b.commit, tree); err != nil {
		return err
	}
	b.before, err = Build(ctx, tree, filepath.Join(b.dir, "bin-before"))
	return err
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

// skipWithoutHistory handles a tree without git history.
func skipWithoutHistory(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNoHistory) && os.Getenv("HERALD_TRIAL_NO_HISTORY") == "1" {
		fmt.Println("chaos: N-1 beside N: not run, there is no git history (HERALD_TRIAL_NO_HISTORY=1)")
		t.Skip(err)
	}
}
