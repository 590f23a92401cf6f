package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Bench is what the trials of a process share: programs and a Postgres. The first trial that asks makes them. Safe for
// concurrent use.
type Bench struct {
	mu       sync.Mutex
	dir      string
	programs Programs
	before   Programs // of commit
	commit   string
	postgres *Postgres
	log      *os.File
}

// Main runs the tests, ends what they shared and looks for goroutines that they left. It does not return.
func (b *Bench) Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(benchRun{b, m}, options...)
}

type benchRun struct {
	bench *Bench
	m     *testing.M
}

func (r benchRun) Run() int {
	code := r.m.Run()
	err := r.bench.close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
		return max(code, 1)
	}
	return code
}

// Get returns programs and a running Postgres.
func (b *Bench) Get(t testing.TB) (Programs, *Postgres) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := b.make(ctx); err != nil {
		t.Fatal(err)
	}
	return b.programs, b.postgres
}

// GetBefore returns the programs of an older commit, and names it: HERALD_TRIAL_BEFORE, else the last one without the
// newest migration.
func (b *Bench) GetBefore(t testing.TB) (before Programs, commit string, err error) {
	t.Helper()
	b.Get(t) // makes the folder
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err = b.makeBefore(ctx)
	return b.before, b.commit, err
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

func (b *Bench) make(ctx context.Context) (err error) {
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

func (b *Bench) makeBefore(ctx context.Context) error {
	if b.before.dir != "" {
		return nil
	}
	source, err := findSource()
	if err != nil {
		return err
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

func (b *Bench) close() error {
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
