package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5/pgconn"
)

// attachInterval is how often a command tries again to use a data folder that another process has locked.
const attachInterval = 100 * time.Millisecond

const (
	pingTimeout  = 3 * time.Second // one question to Postgres
	pingInterval = time.Second     // between questions, while a command waits for Postgres
)

// NoDatabaseError reports that a command found neither a running worker nor a database that a worker created. Commands
// create none, because a worker with another data folder would never deliver their jobs.
type NoDatabaseError struct{ Dir string }

func (e *NoDatabaseError) Error() string {
	if e.Dir == "" {
		return "there is no database: DATABASE_URL is not set, and this user has no home in which a worker could " +
			"have made one. Set HERALD_DATA to the worker's data folder, or DATABASE_URL to its database"
	}
	return fmt.Sprintf("there is no database: DATABASE_URL is not set, no worker is running on %s, and none has made "+
		"a database there. Set HERALD_DATA to the worker's data folder (its log names it), or DATABASE_URL to its "+
		"database; only the worker makes one", e.Dir)
}

// Attach finds Postgres and Redis for a command: the configured ones, else those of the worker that runs on the data
// folder. If no worker runs there, Attach starts the Postgres that a worker created, and accepted jobs wait for a
// worker. wait bounds that start. It also bounds the wait for another process that has locked the folder: a worker that
// is starting publishes its addresses as soon as its Postgres answers.
func Attach(ctx context.Context, cfg *config.Config, wait time.Duration, log *slog.Logger) (*Backend, error) {
	dir := DataDir(cfg)
	if !cfg.DatabaseURL.IsZero() {
		return attachConfigured(cfg, dir), nil
	}
	if dir == "" {
		return nil, &NoDatabaseError{}
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		b, err := attachFolder(ctx, limited, cfg, dir, log)
		held, ok := errors.AsType[*embedded.InUseError](err)
		if !ok {
			return b, explainUnreadable(err, dir)
		}
		if loop.Pause(limited, attachInterval) != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("stopped while waiting for %s: %w", dir, context.Cause(ctx))
			}
			return nil, busyFolder(held, wait)
		}
	}
}

// attachConfigured returns DATABASE_URL and REDIS_URL. Without REDIS_URL it returns the embedded Redis of a worker on
// the data folder that uses the same database (HERALD_QUEUE=embedded).
func attachConfigured(cfg *config.Config, dir string) *Backend {
	b := &Backend{DatabaseURL: cfg.DatabaseURL, LeaderURL: cfg.LeaderURL, RedisURL: cfg.RedisURL}
	if !b.RedisURL.IsZero() || dir == "" {
		return b
	}
	run, err := embedded.ReadRunFile(dir)
	if name := databaseName(cfg.DatabaseURL); err == nil && name != "" && run.Database == name {
		b.RedisURL, b.EmbeddedRedis = secret.New(run.RedisURL), true
	}
	return b
}

// attachFolder tries once to use the data folder: the addresses of a running worker, else the cluster in the folder. It
// returns *embedded.InUseError if another process has locked the folder and published no addresses. limited bounds the
// start of the cluster.
func attachFolder(ctx, limited context.Context, cfg *config.Config, dir string, log *slog.Logger) (*Backend, error) {
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case err == nil && run.DatabaseURL == "":
		return nil, fmt.Errorf("the worker that runs on %s has a database of its own: set DATABASE_URL to the same "+
			"one (%s)", dir, run.Database)
	case err == nil:
		b := &Backend{DatabaseURL: secret.New(run.DatabaseURL), RedisURL: secret.New(run.RedisURL), DataDir: dir,
			EmbeddedDatabase: true,
			EmbeddedRedis:    run.RedisURL != ""}
		if !b.EmbeddedRedis {
			b.RedisURL = cfg.RedisURL // zero: accepted jobs wait for the worker's reconciler
		}
		return b, nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &stale):
		return nil, fmt.Errorf("find the running worker: %w", err)
	}
	if err := embedded.CheckFree(dir); err != nil {
		return nil, err
	}
	there, err := embedded.HasCluster(dir)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, &NoDatabaseError{Dir: dir}
	}
	return startLeftCluster(ctx, limited, cfg, dir, log)
}

// startLeftCluster starts the Postgres that a worker created, until the Backend is closed.
func startLeftCluster(ctx, limited context.Context, cfg *config.Config, dir string,
	log *slog.Logger) (*Backend, error) {
	lock, err := embedded.LockDir(dir)
	if err != nil {
		return nil, err
	}
	log.Info("no worker runs on this data folder: starting its Postgres alone; accepted deliveries wait for a worker",
		"folder", dir)
	b := &Backend{RedisURL: cfg.RedisURL, DataDir: dir}
	b.release = append(b.release, func(context.Context) error { return lock.Release() })
	if err := b.startPostgres(limited, cfg, false, Options{Logger: log}); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the Postgres that a worker made on %s did not start in time (after a crash it replays "+
				"its log): wait longer with --timeout, unless it says what prevents it (%w)", dir, err)
		}
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// busyFolder returns the error for a folder that another process has locked for the whole wait.
func busyFolder(held *embedded.InUseError, wait time.Duration) error {
	who := "another process"
	if held.PID > 0 {
		who = fmt.Sprintf("process %d", held.PID)
	}
	return fmt.Errorf("%s is held by %s, which published no database address within %s: a worker that waits for "+
		"something while it starts (its log says for what), or another command at work. Try again later, "+
		"or wait longer with --timeout", held.Dir, who, wait)
}

// explainUnreadable adds advice to an error if this user has no permission for the data folder.
func explainUnreadable(err error, dir string) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this user may not use the data folder %s: run this as the user that its worker runs as, "+
			"or set DATABASE_URL (%w)", dir, err)
	}
	return err
}

// databaseName identifies a database without its password: user, host, port and name of a URL. It is empty if the URL
// is invalid.
func databaseName(address secret.Secret) string {
	c, err := pgconn.ParseConfig(address.Reveal())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database)
}

// AwayError reports that a command did not reach Postgres in time, or that Postgres refused the connection.
type AwayError struct {
	Within  time.Duration // zero: the server refused the connection
	DataDir string        // of the worker whose embedded Postgres it is; empty: DATABASE_URL names it
	Err     error
}

func (e *AwayError) Error() string {
	switch {
	case e.Within == 0 && e.DataDir == "":
		return fmt.Sprintf("Postgres refuses the connection: %v. Check the user, password and database name in "+
			"DATABASE_URL", e.Err)
	case e.Within == 0:
		return fmt.Sprintf("the Postgres of the worker on %s refuses the connection: %v. Run this as the user that "+
			"the worker runs as", e.DataDir, e.Err)
	case e.DataDir == "":
		return fmt.Sprintf("Postgres did not answer within %s: %v. Start it, or check DATABASE_URL; --timeout waits "+
			"longer", e.Within, e.Err)
	}
	return fmt.Sprintf("the Postgres of the worker on %s did not answer within %s: %v. See that worker's log, "+
		"or restart it; --timeout waits longer", e.DataDir, e.Within, e.Err)
}

func (e *AwayError) Unwrap() error { return e.Err }

// Reach waits until Postgres answers, at most wait.
func (b *Backend) Reach(ctx context.Context, wait time.Duration, log *slog.Logger) error {
	st, err := store.Open(postgres.Config{URL: b.DatabaseURL, LeaderURL: b.LeaderURL, MaxConns: 2,
		CloseWithin: postgres.CommandClose})
	if err != nil {
		return err
	}
	defer st.Close()
	return b.awaitPostgres(ctx, st, wait, false, log)
}

// awaitPostgres waits until Postgres answers. It does not try again if once is set, or if the server refuses the
// connection.
func (b *Backend) awaitPostgres(ctx context.Context, st *store.Store, wait time.Duration, once bool,
	log *slog.Logger) error {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for {
		err := pingOnce(limited, st)
		switch {
		case err == nil:
			if last != nil {
				log.Info("reached postgres")
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("stopped while waiting for Postgres: %w", context.Cause(ctx))
		case isRefusal(err):
			return &AwayError{DataDir: b.ownerDataDir(), Err: err}
		case once:
			return fmt.Errorf("the database is away: %w", explainSilence(err))
		}
		if last == nil {
			log.Warn("waiting for postgres", "error", err)
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // a timeout is less informative than an earlier error
		}
		if loop.Pause(limited, pingInterval) != nil && ctx.Err() == nil {
			return &AwayError{Within: wait, DataDir: b.ownerDataDir(), Err: explainSilence(last)}
		}
	}
}

// pingOnce pings Postgres with a timeout of pingTimeout.
func pingOnce(ctx context.Context, st *store.Store) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return st.Ping(ctx)
}

// ownerDataDir returns the data folder of the worker whose embedded database it is, or "" for a configured database.
func (b *Backend) ownerDataDir() string {
	if b.EmbeddedDatabase {
		return b.DataDir
	}
	return ""
}

// explainSilence replaces a timeout, or a missing error, by a readable error.
func explainSilence(err error) error {
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return errors.New("nothing came back")
	}
	return err
}

// isRefusal reports whether a server refused the connection for a reason that does not pass: a wrong user or password,
// a missing database or permission, or an unknown parameter in the URL. Other errors may pass soon: the server starts,
// stops, has no free connection, has crashed, or a pooler answers for it.
func isRefusal(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	const authorization, noDatabase, noRight, noParameter = "28", "3D", "42501", "42704"
	return strings.HasPrefix(answer.Code, authorization) || strings.HasPrefix(answer.Code, noDatabase) ||
		answer.Code == noRight || answer.Code == noParameter
}
