package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// RedisMode selects the implementation of Redis.
type RedisMode string

const (
	// RedisAuto, the default, runs a server found on the machine, else miniredis.
	RedisAuto RedisMode = "auto"
	// RedisServer runs a server found on the machine, else it is an error.
	RedisServer RedisMode = "redis"
	// RedisMini runs miniredis in this process. It handles about 3,000 tasks a second on one core, keeps about 100
	// bytes of memory for every task that ever ran, and loses its data at a restart.
	RedisMini RedisMode = "mini"
)

// StartRedis starts a Redis and returns when it answers. With RedisAuto miniredis replaces a server that does not
// start, with a warning. That is safe because Redis holds no data that Postgres lacks (docs/design/delivery.md).
func StartRedis(ctx context.Context, cfg Config) (*Server, error) {
	s, err := chooseRedis(ctx, cfg.withLogger())
	if err != nil {
		return nil, fmt.Errorf("embedded Redis: %w", err)
	}
	return s, nil
}

func chooseRedis(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.checkOptions(); err != nil {
		return nil, err
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

// redisAccount returns the user for a redis-server: the owner of existing data, else the user that Postgres would run
// as.
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
	acct.mapped = false // Redis needs no passwd entry
	return acct, err
}
