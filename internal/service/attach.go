package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/secret"
	"github.com/jackc/pgx/v5/pgconn"
)

// Attach finds the services for a command beside the worker: the configured ones, else those of the worker that runs on
// this data folder, else Postgres alone is started and rows wait for a worker.
func Attach(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Backend, error) {
	dir := DataDir(cfg)
	run, err := embedded.ReadRunFile(dir)
	if !cfg.DatabaseURL.IsZero() {
		b := &Backend{DatabaseURL: cfg.DatabaseURL, RedisURL: cfg.RedisURL}
		if name := databaseName(cfg.DatabaseURL); b.RedisURL.IsZero() && err == nil && name != "" && run.Database == name {
			b.RedisURL, b.EmbeddedRedis = secret.New(run.RedisURL), true // HERALD_QUEUE=embedded, and the worker runs
		}
		return b, nil
	}
	var stale *embedded.StaleRunFileError
	switch {
	case err == nil && run.DatabaseURL == "":
		return nil, fmt.Errorf("the worker that runs on %s has a database of its own: set DATABASE_URL to the same one (%s)", dir, run.Database)
	case err == nil:
		b := &Backend{DatabaseURL: secret.New(run.DatabaseURL), RedisURL: secret.New(run.RedisURL), DataDir: dir, EmbeddedDatabase: true,
			EmbeddedRedis: run.RedisURL != ""}
		if !b.EmbeddedRedis {
			b.RedisURL = cfg.RedisURL // zero: rows wait for the worker's sweep
		}
		return b, nil
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		log.Info("no worker runs on this data folder: starting Postgres alone; what is accepted waits for a worker", "folder", dir)
		return OpenBackend(ctx, cfg, BackendOptions{Logger: log})
	}
	return nil, fmt.Errorf("find the running worker: %w", err)
}

// databaseName tells databases apart without saying how one gets in: user, host, port and name of a URL; empty when it cannot be read.
func databaseName(address secret.Secret) string {
	c, err := pgconn.ParseConfig(address.Reveal())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database)
}
