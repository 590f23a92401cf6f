// Package backend finds Postgres and Redis for a worker or a command, starts embedded ones where they are not
// configured, and opens the store and the keyset on them. It does not know what runs on them.
//
// Invariants: only a worker creates a data folder's database; a command starts it at most, while no worker runs.
// run.json has no password of a configured service.
package backend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
)

const (
	lockTimeout = 10 * time.Second // for a data folder that another process has locked
	stopTimeout = 30 * time.Second
)

// Backend holds the addresses of Postgres and Redis, which are configured or embedded.
type Backend struct {
	DatabaseURL secret.Secret
	LeaderURL   secret.Secret // of Postgres itself if DatabaseURL is that of a pooler; else zero
	RedisURL    secret.Secret // zero: Redis is not available, and accepted jobs wait for a worker

	EmbeddedDatabase, EmbeddedRedis bool
	DataDir                         string // empty without embedded services, or if they are ephemeral

	release []func(context.Context) error // in the order of starting
}

// Options control how embedded services run.
type Options struct {
	Ephemeral bool // embedded services delete their data when they stop
	Logger    *slog.Logger
}

// Open returns the configured services of a worker, and starts embedded ones for those without a URL. It creates
// their data on the first start, and logs one line for each. Commands use Attach.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *Backend, err error) {
	b := &Backend{DatabaseURL: cfg.DatabaseURL, LeaderURL: cfg.LeaderURL, RedisURL: cfg.RedisURL}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close(context.WithoutCancel(ctx)))
		}
	}()
	needDB, needRedis := b.DatabaseURL.IsZero(), b.RedisURL.IsZero()
	if !needDB && !needRedis {
		o.Logger.Info("using DATABASE_URL and REDIS_URL")
		return b, nil
	}
	if err := b.claimDataDir(ctx, cfg, o); err != nil {
		return nil, err
	}
	if needDB {
		if err := b.startPostgres(ctx, cfg, true, o); err != nil {
			return nil, err
		}
	}
	if needRedis {
		if err := b.startRedis(ctx, cfg, o); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// DirectURL returns the address of Postgres itself, for migrations and maintenance.
func (b *Backend) DirectURL() secret.Secret {
	if b.LeaderURL.IsZero() {
		return b.DatabaseURL
	}
	return b.LeaderURL
}

// DataDir returns HERALD_DATA or its default.
func DataDir(cfg *config.Config) string {
	if cfg.DataDir != "" {
		return cfg.DataDir
	}
	return embedded.DefaultDataDir()
}

func (b *Backend) claimDataDir(ctx context.Context, cfg *config.Config, o Options) error {
	if o.Ephemeral {
		return nil // the services create their own temporary folders
	}
	if b.DataDir = DataDir(cfg); b.DataDir == "" {
		return errors.New("this user has no home for the embedded services' data: set HERALD_DATA to a folder")
	}
	// A short command may have locked the folder, so wait for it.
	wait, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := embedded.WaitLockDir(wait, b.DataDir)
	if err != nil {
		return err
	}
	b.release = append(b.release, func(context.Context) error { return lock.Release() })
	return nil
}

// startPostgres starts the cluster of the data folder. With fetch it downloads Postgres if this machine has none.
func (b *Backend) startPostgres(ctx context.Context, cfg *config.Config, fetch bool, o Options) error {
	pg, err := embedded.StartPostgres(ctx, embedded.Config{
		Dir: b.DataDir, CacheDir: cfg.CacheDir, Fetch: fetch, Ephemeral: o.Ephemeral, Logger: o.Logger})
	if err != nil {
		return err
	}
	b.release = append(b.release, pg.Stop)
	b.DatabaseURL, b.EmbeddedDatabase = secret.New(pg.URL()), true
	return nil
}

func (b *Backend) startRedis(ctx context.Context, cfg *config.Config, o Options) error {
	rd, err := embedded.StartRedis(ctx, embedded.Config{
		Dir: b.DataDir, CacheDir: cfg.CacheDir, Ephemeral: o.Ephemeral, Logger: o.Logger})
	if err != nil {
		return err
	}
	b.release = append(b.release, rd.Stop)
	b.RedisURL, b.EmbeddedRedis = secret.New(rd.URL()), true
	return nil
}

// Stop is Close for a command, which only logs an error. It does not stop early when ctx ends.
func (b *Backend) Stop(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		log.Warn("the embedded database did not stop in order", "error", err)
	}
}

// Close stops the services that Open or Attach started, the last one first.
func (b *Backend) Close(ctx context.Context) error {
	var errs []error
	for _, release := range slices.Backward(b.release) {
		errs = append(errs, release(ctx))
	}
	b.release = nil
	return errors.Join(errs...)
}
