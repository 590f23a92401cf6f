package trial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/jackc/pgx/v5"
)

// Postgres is a cluster that can be stopped and started again at the same address. Except in the canary test, it is
// durable: committed data survives every end of the server. Several sites can use it one after the other, each with its
// own database. That is needed because Herald treats a Postgres that has just started with care, so a new cluster would
// change the test.
type Postgres struct {
	dir    string
	test   bool // not durable, and made faster (embedded.Config.Test)
	log    *slog.Logger
	server *embedded.Server // nil while stopped
	url    string
	frozen []int
}

// StartPostgres creates a cluster in DIR/postgres, or starts the existing one. If this process is root, the server
// runs as another user, which must be able to traverse DIR. Close stops it.
func StartPostgres(ctx context.Context, dir string, log *slog.Logger) (*Postgres, error) {
	p := &Postgres{dir: dir, log: log}
	return p, p.Start(ctx)
}

// Close stops the cluster, even if it is frozen.
func (p *Postgres) Close(ctx context.Context) error { return errors.Join(p.Thaw(ctx), p.Stop(ctx)) }

// Restore makes the cluster run, from any state.
func (p *Postgres) Restore(ctx context.Context) error {
	err := p.Thaw(ctx)
	if p.server == nil {
		err = errors.Join(err, p.Start(ctx))
	}
	return err
}

// Database returns the address of one of the cluster's databases.
func (p *Postgres) Database(name string) (string, error) {
	u, err := url.Parse(p.url)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// Start starts the cluster with its data, at the address that workers know.
func (p *Postgres) Start(ctx context.Context) error {
	server, err := embedded.StartPostgres(ctx, embedded.Config{Dir: p.dir, Test: p.test, Logger: p.log})
	if err != nil {
		return err
	}
	if p.url != "" && server.URL() != p.url {
		return errors.Join(fmt.Errorf("Postgres came back at %s, not at %s", server.URL(), p.url), server.Stop(ctx))
	}
	p.server, p.url = server, server.URL()
	return nil
}

// Stop stops the cluster as pg_ctl stop -m fast does: it disconnects clients and accepts no new ones.
func (p *Postgres) Stop(ctx context.Context) error {
	if p.server == nil {
		return nil
	}
	err := p.server.Stop(ctx)
	p.server = nil
	return err
}

// Freeze stops the server and all backends with SIGSTOP: connections stay open and get no answer.
func (p *Postgres) Freeze(ctx context.Context) error {
	pid, err := p.PID()
	if err != nil {
		return err
	}
	// Stop the postmaster first, so that it creates no further backends.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze Postgres: %w", err)
	}
	p.frozen = []int{pid}
	backends, err := children(pid)
	if err != nil {
		return errors.Join(err, p.Thaw(ctx))
	}
	for _, b := range backends {
		if err := syscall.Kill(b, syscall.SIGSTOP); err == nil { // otherwise it has just ended
			p.frozen = append(p.frozen, b)
		}
	}
	return nil
}

// Thaw continues the processes that Freeze stopped.
func (p *Postgres) Thaw(context.Context) error {
	var errs []error
	for _, pid := range p.frozen {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("thaw Postgres: %w", err))
		}
	}
	p.frozen = nil
	return errors.Join(errs...)
}

// PID returns the postmaster's process id.
func (p *Postgres) PID() (int, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}

// Exec runs a statement in the cluster's own database.
func (p *Postgres) Exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	c, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	return errors.Join(err, c.Close(context.WithoutCancel(ctx)))
}

// statementTime bounds a statement of a trial.
const statementTime = 30 * time.Second
