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

	"github.com/agentherald/herald/internal/embedded"
	"github.com/jackc/pgx/v5"
)

// Postgres is a cluster that can be taken away and brought back at the same address. It is durable: what was committed survives every
// end of the server. Several sites can use one after the other, each with a database of its own: Herald is careful with a Postgres
// that has just started, so a young one changes what is tried.
type Postgres struct {
	dir    string
	log    *slog.Logger
	server *embedded.Postgres // nil while stopped
	url    string
	frozen []int
}

// StartPostgres makes a cluster in DIR/postgres, or starts the one that is there. As root the server runs as another user, who has to
// be able to pass through DIR. Close ends it.
func StartPostgres(ctx context.Context, dir string, log *slog.Logger) (*Postgres, error) {
	p := &Postgres{dir: dir, log: log}
	return p, p.Start(ctx)
}

// Close ends it, frozen or not.
func (p *Postgres) Close(ctx context.Context) error { return errors.Join(p.Thaw(), p.Stop(ctx)) }

// Restore makes it run, whatever was done to it.
func (p *Postgres) Restore(ctx context.Context) error {
	err := p.Thaw()
	if p.server == nil {
		err = errors.Join(err, p.Start(ctx))
	}
	return err
}

// Database is the address of one of its databases.
func (p *Postgres) Database(name string) (string, error) {
	u, err := url.Parse(p.url)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// Start brings it back with its data. Workers find it at the address they know.
func (p *Postgres) Start(ctx context.Context) error {
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{Dir: p.dir, Logger: p.log})
	if err != nil {
		return err
	}
	if p.url != "" && server.URL() != p.url {
		return errors.Join(fmt.Errorf("Postgres came back at %s, not at %s", server.URL(), p.url), server.Stop(ctx))
	}
	p.server, p.url = server, server.URL()
	return nil
}

// Stop is pg_ctl stop -m fast: clients are disconnected, nobody connects any more.
func (p *Postgres) Stop(ctx context.Context) error {
	if p.server == nil {
		return nil
	}
	err := p.server.Stop(ctx)
	p.server = nil
	return err
}

// Freeze stops the server and every backend in their tracks: connections stay open and say nothing.
func (p *Postgres) Freeze() error {
	pid, err := p.pid()
	if err != nil {
		return err
	}
	// The postmaster first, so that it makes no more backends.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze Postgres: %w", err)
	}
	p.frozen = []int{pid}
	backends, err := children(pid)
	if err != nil {
		return errors.Join(err, p.Thaw())
	}
	for _, b := range backends {
		if err := syscall.Kill(b, syscall.SIGSTOP); err == nil { // else it ended just now
			p.frozen = append(p.frozen, b)
		}
	}
	return nil
}

// Thaw undoes Freeze.
func (p *Postgres) Thaw() error {
	var errs []error
	for _, pid := range p.frozen {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("thaw Postgres: %w", err))
		}
	}
	p.frozen = nil
	return errors.Join(errs...)
}

// pid is the postmaster's.
func (p *Postgres) pid() (int, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}

// Exec runs a statement in the cluster's own database.
func (p *Postgres) Exec(ctx context.Context, sql string) error {
	return onConnection(ctx, p.url, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

// onConnection runs f on a connection that is closed afterwards: none survives a restart, so none is kept.
func onConnection(ctx context.Context, address string, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, c), c.Close(context.WithoutCancel(ctx)))
}
