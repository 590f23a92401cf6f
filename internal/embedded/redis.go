package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RedisMode says which Redis to run.
type RedisMode string

const (
	// RedisAuto is a server found on the machine, else miniredis. The default.
	RedisAuto RedisMode = "auto"
	// RedisServer is a server found on the machine, else an error.
	RedisServer RedisMode = "redis"
	// RedisMini is miniredis in this process: about 3,000 tasks a second on one core, and about 100 bytes of memory kept
	// for every task ever run.
	RedisMini RedisMode = "mini"
)

// RedisConfig says which Redis to run and where its data lives.
type RedisConfig struct {
	// Dir is the data folder (HERALD_DATA); Redis' part is Dir/redis. Required unless Ephemeral.
	Dir string
	// Ephemeral keeps nothing.
	Ephemeral bool
	// Mode defaults to RedisAuto.
	Mode RedisMode
	// SnapshotEvery is how often miniredis is written to disk; a crash loses what came later. Default 5 s; a snapshot that
	// takes long makes the pauses longer, so that at most a twentieth of the time goes into it.
	SnapshotEvery time.Duration
	// CacheDir holds fetched binaries. Default DefaultCacheDir().
	CacheDir string
	// Logger gets one line per step. Default: nothing is logged.
	Logger *slog.Logger
}

// Redis is a running Redis that belongs to this process and ends with it.
type Redis struct {
	engine    engine
	ephemeral *ephemeral
	lock      *Lock
	logger    *slog.Logger

	stop    sync.Once
	stopErr error
}

// engine is what serves: a child process or miniredis.
type engine interface {
	url() string
	describe() string
	done() <-chan struct{}
	close(ctx context.Context) error
}

// StartRedis starts a Redis and returns when it answers. With RedisAuto a server that is found but does not start is
// replaced by miniredis, with a warning: losing the queue costs time, not work (DESIGN §1).
func StartRedis(ctx context.Context, cfg RedisConfig) (_ *Redis, err error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	switch cfg.Mode {
	case "":
		cfg.Mode = RedisAuto
	case RedisAuto, RedisServer, RedisMini:
	default:
		return nil, fmt.Errorf("embedded Redis: unknown mode %q: auto, redis or mini", cfg.Mode)
	}
	if cfg.SnapshotEvery < 0 {
		return nil, errors.New("embedded Redis: SnapshotEvery is negative")
	}
	r := &Redis{logger: log}
	dir := cfg.Dir
	switch {
	case cfg.Ephemeral && dir != "":
		return nil, errors.New("embedded Redis: Dir and Ephemeral exclude each other")
	case cfg.Ephemeral:
		if r.ephemeral, err = newEphemeral(ctx, "", log); err != nil {
			return nil, fmt.Errorf("embedded Redis: %w", err)
		}
		dir = r.ephemeral.dir
	case dir == "":
		return nil, errors.New("embedded Redis: a data folder is needed (HERALD_DATA)")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("embedded Redis: %w", errors.Join(err, r.release()))
		}
	}()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	base := filepath.Join(dir, "redis")
	if err := ensureDir(base); err != nil {
		return nil, err
	}
	if r.lock, err = lockPart(ctx, base); err != nil {
		return nil, err
	}
	if cfg.Mode != RedisMini {
		r.engine, err = startRedisServer(ctx, cfg, base, log)
		switch {
		case err == nil:
			return r, nil
		case cfg.Mode == RedisServer || ctx.Err() != nil:
			return nil, err
		case errors.Is(err, ErrNoRedis):
			log.Info("redis: using miniredis in this process", "why", err.Error())
		default:
			log.Warn("redis: using miniredis in this process, because the server that was found does not start", "err", err)
		}
	} else {
		log.Info("redis: using miniredis in this process")
	}
	r.engine, err = startMini(ctx, cfg, base, log)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// URL is a connection URL as asynq parses it: redis-socket:///path, or redis://:password@127.0.0.1:port for miniredis, whose
// password is made anew at each start and keeps the machine's other users out.
func (r *Redis) URL() string { return r.engine.url() }

// Describe says for people what runs and where its data is. It holds no password.
func (r *Redis) Describe() string { return r.engine.describe() }

// Done is closed when the server has ended, whether asked to or not.
func (r *Redis) Done() <-chan struct{} { return r.engine.done() }

// Stop ends the server after its data is on disk, waiting until ctx ends, 30 s at most without a deadline. Further calls
// return the first one's result.
func (r *Redis) Stop(ctx context.Context) error {
	r.stop.Do(func() {
		began := time.Now()
		r.stopErr = errors.Join(r.engine.close(ctx), r.release())
		r.logger.Info("redis: stopped", "took", time.Since(began).Round(time.Millisecond))
	})
	return r.stopErr
}

func (r *Redis) release() error {
	return errors.Join(r.lock.Release(), r.ephemeral.remove())
}

// redisAccount is the user for a redis-server: the owner of existing data, else the one that Postgres would run as.
func redisAccount(data string) (account, error) {
	self := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), name: "this user"}
	if self.uid != 0 {
		return self, nil
	}
	owner := -1
	if info, err := os.Lstat(data); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 {
			owner = int(stat.Uid)
		}
	}
	acct, err := pickAccount(owner)
	acct.mapped = false // Redis does not ask for a passwd entry
	return acct, err
}

// explainNoRedis names what was passed over.
func explainNoRedis(passed []string) error {
	if len(passed) == 0 {
		return ErrNoRedis
	}
	return fmt.Errorf("%w (%s)", ErrNoRedis, strings.Join(passed, "; "))
}
