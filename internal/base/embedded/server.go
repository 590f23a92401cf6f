package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Config configures StartPostgres, StartRedis and Fetch.
type Config struct {
	// Dir is the data folder (HERALD_DATA); a server uses Dir/postgres or Dir/redis. The process holds its lock
	// (LockDir). Required unless Ephemeral.
	Dir string
	// Ephemeral keeps the data in a temporary folder that Stop removes.
	Ephemeral bool
	// CacheDir contains fetched programs. Default DefaultCacheDir().
	CacheDir string
	// Logger receives one line per step. Default: nothing is logged.
	Logger *slog.Logger

	// Fetch allows StartPostgres to download programs into CacheDir if none are found.
	Fetch bool
	// Again makes the function Fetch download programs that the machine already has.
	Again bool
	// Test makes Postgres trade safety for speed: fsync is off, a new cluster is a copy of one in the cache, and an
	// Ephemeral cluster is kept in memory if there is enough. A crash loses the last commits, and a power failure
	// destroys the data.
	Test bool
	// Mode selects the implementation of Redis. Default RedisAuto.
	Mode RedisMode
}

// checkOptions checks the options of a server.
func (cfg Config) checkOptions() error {
	switch {
	case cfg.Ephemeral && cfg.Dir != "":
		return errors.New("options Dir and Ephemeral exclude each other")
	case !cfg.Ephemeral && cfg.Dir == "":
		return errors.New("a data folder is needed (HERALD_DATA)")
	}
	return nil
}

// withLogger returns the configuration with a logger.
func (cfg Config) withLogger() Config {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return cfg
}

// Server is a running Postgres or Redis, with everything that a complete or partial start has acquired. It belongs to
// this process and ends with it.
type Server struct {
	name      string // for logs: "postgres" or "redis"
	url       string
	installed installation
	base      string // the folder, in a data folder
	data      string // base/data
	sockets   string
	tempSock  bool // sockets is in /tmp
	acct      account
	child     *child
	mini      *mini          // Redis in this process instead of a child
	ask       syscall.Signal // for an orderly end, after which the data is complete on disk
	insist    syscall.Signal
	ephemeral *ephemeral // nil: the data stays
	lock      *Lock
	logger    *slog.Logger

	stop    sync.Once
	stopErr error
}

// URL returns a connection URL: for pgx, without a password, because the socket's folder protects the server; for
// asynq, redis-socket:///path, or redis://:password@127.0.0.1:port for miniredis. That password is random at each start
// and keeps other users of the machine out.
func (s *Server) URL() string { return s.url }

// Stop stops the server and disconnects its clients. It waits until ctx ends, or 30 s if ctx has no deadline, then
// kills the server. Postgres then replays its log at the next start. Further calls return the result of the first one.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		began := time.Now()
		s.stopErr = s.release(ctx)
		s.logger.Info(s.name+": stopped", "took", time.Since(began).Round(time.Millisecond))
	})
	return s.stopErr
}

// minSpace is the free space below which a full disk is named as a cause of a failed start. A file of Postgres' log has
// 16 MiB.
const minSpace = 16 << 20

// lockAndStart locks the server's folder and calls do, which starts the server there. If do fails, it releases
// everything.
func (s *Server) lockAndStart(ctx context.Context, cfg Config, do func(context.Context, Config) error) error {
	s.logger = cfg.Logger
	err := s.lockFolder(ctx, cfg)
	if err == nil {
		err = do(ctx, cfg)
	}
	if err != nil {
		return errors.Join(err, s.release(context.WithoutCancel(ctx)))
	}
	return nil
}

// lockFolder creates and locks the server's folder in the data folder, which may be a temporary one.
func (s *Server) lockFolder(ctx context.Context, cfg Config) (err error) {
	dir, parent := cfg.Dir, ""
	if cfg.Test {
		parent = memoryDir()
	}
	if cfg.Ephemeral {
		if s.ephemeral, err = newEphemeral(ctx, parent, s.logger); err != nil {
			return err
		}
		dir = s.ephemeral.dir
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	s.base = filepath.Join(dir, s.name)
	s.data = filepath.Join(s.base, "data")
	if err = ensureDir(s.base); err != nil {
		return err
	}
	s.lock, err = lockPart(ctx, s.base, s.ask, s.logger)
	return err
}

// restrictTo sets the account that the server runs as, and keeps others out of its folder.
func (s *Server) restrictTo(acct account) error {
	s.acct = acct.inPrivateGroup()
	if err := s.acct.restrictFolder(s.base, 0o710); err != nil {
		return s.acct.explainStart(err)
	}
	return s.acct.checkPassage(s.base)
}

// launch starts the server's program as the account, and waits until isReady returns true. If this process dies, the
// kernel asks the program to end.
func (s *Server) launch(ctx context.Context, args []string, isReady func() (bool, error)) (err error) {
	began := time.Now()
	p := program{name: s.installed.server, path: s.installed.programPath(), args: args,
		libs: s.installed.libs, acct: s.acct, onDeath: s.ask, lock: s.lock, logger: s.logger}
	record := filepath.Join(s.base, serverName)
	if err := os.RemoveAll(record); err != nil {
		return err
	}
	if s.child, err = p.start(); err != nil {
		return err
	}
	if err = writeAtomic(record, 0o600, fmt.Append(nil, s.child.cmd.Process.Pid)); err == nil {
		err = pollUntil(ctx, 5*time.Millisecond, func() (bool, error) {
			select {
			case <-s.child.done:
				return false, s.child.startError()
			default:
				return isReady()
			}
		})
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w; it said: %s", err, s.child.tail.lastLines())
	}
	if full := describeFullDisk(s.base, minSpace); err != nil && full != "" {
		err = fmt.Errorf("%s (%w)", full, err) // Postgres does not always log that as the cause
	}
	if err != nil {
		return fmt.Errorf("wait for %s: %w", p.name, err)
	}
	s.child.serving.Store(true)
	s.logger.Info(s.name+": ready", "socket", s.sockets, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// release stops the process (see child.stop), and releases everything else.
func (s *Server) release(ctx context.Context) error {
	var errs []error
	if s.mini != nil {
		s.mini.stopServer()
	}
	if s.child != nil {
		ask := s.ask
		if s.ephemeral != nil { // its data is not worth the time
			ask = s.insist
		}
		errs = append(errs, s.child.stop(ctx, ask, s.insist))
	}
	if s.tempSock {
		errs = append(errs, os.RemoveAll(s.sockets))
	}
	return errors.Join(append(errs, s.lock.Release(), s.ephemeral.remove())...)
}
