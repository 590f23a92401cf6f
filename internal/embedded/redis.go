package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
	// RedisMini is miniredis in this process: about 3,000 tasks a second on one core, about 100 bytes of memory kept
	// for every task ever run, and nothing kept over a restart.
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
	// CacheDir holds fetched binaries. Default DefaultCacheDir().
	CacheDir string
	// Logger gets one line per step. Default: nothing is logged.
	Logger *slog.Logger
}

// Redis is a running Redis that belongs to this process and ends with it.
type Redis struct {
	engine engine
	logger *slog.Logger

	stop    sync.Once
	stopErr error
}

// engine is what serves: a child process or miniredis.
type engine interface {
	url() string
	close(ctx context.Context) error
}

// StartRedis starts a Redis and returns when it answers. With RedisAuto a server that is found but does not start is
// replaced by miniredis, with a warning: losing the queue costs time, not work (DESIGN §1).
func StartRedis(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	engine, err := startEngine(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("embedded Redis: %w", err)
	}
	return &Redis{engine: engine, logger: cfg.Logger}, nil
}

func startEngine(ctx context.Context, cfg RedisConfig) (engine, error) {
	switch {
	case cfg.Ephemeral && cfg.Dir != "":
		return nil, errors.New("options Dir and Ephemeral exclude each other")
	case !cfg.Ephemeral && cfg.Dir == "":
		return nil, errors.New("a data folder is needed (HERALD_DATA)")
	}
	switch cfg.Mode {
	case RedisServer:
		return startRedisServer(ctx, cfg)
	case RedisMini:
		cfg.Logger.Info("redis: using miniredis in this process")
		return startMini(cfg.Logger)
	case "", RedisAuto:
	default:
		return nil, fmt.Errorf("unknown mode %q: use auto, redis or mini", cfg.Mode)
	}
	server, err := startRedisServer(ctx, cfg)
	var inUse *InUseError
	switch {
	case err == nil:
		return server, nil
	case ctx.Err() != nil || errors.As(err, &inUse):
		return nil, err
	case errors.Is(err, ErrNoRedis):
		cfg.Logger.Info("redis: using miniredis in this process", "why", err.Error())
	default:
		cfg.Logger.Warn("redis: using miniredis in this process, because the server that was found does not start",
			"err", err)
	}
	return startMini(cfg.Logger)
}

// URL is a connection URL as asynq parses it: redis-socket:///path, or redis://:password@127.0.0.1:port for miniredis,
// whose password is made anew at each start and keeps the machine's other users out.
func (r *Redis) URL() string { return r.engine.url() }

// Stop ends the server after its data is on disk, waiting until ctx ends, 30 s at most without a deadline. Further
// calls return the first one's result.
func (r *Redis) Stop(ctx context.Context) error {
	r.stop.Do(func() {
		began := time.Now()
		r.stopErr = r.engine.close(ctx)
		r.logger.Info("redis: stopped", "took", time.Since(began).Round(time.Millisecond))
	})
	return r.stopErr
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
