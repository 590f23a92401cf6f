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
)

// Attach finds the services for a command beside the worker: the configured ones, else those of the worker that runs on
// this data folder, else Postgres alone is started and rows wait for a worker.
func Attach(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Backend, error) {
	dir := DataDir(cfg)
	run, err := embedded.ReadRunFile(dir)
	if !cfg.DatabaseURL.IsZero() {
		b := &Backend{DatabaseURL: cfg.DatabaseURL, RedisURL: cfg.RedisURL}
		if b.RedisURL.IsZero() && err == nil && run.DatabaseURL == cfg.DatabaseURL.Reveal() {
			b.RedisURL, b.EmbeddedRedis = secret.New(run.RedisURL), true // HERALD_QUEUE=embedded, and the worker runs
		}
		return b, nil
	}
	var stale *embedded.StaleRunFileError
	switch {
	case err == nil:
		return &Backend{DatabaseURL: secret.New(run.DatabaseURL), RedisURL: secret.New(run.RedisURL), DataDir: dir, EmbeddedDatabase: true,
			EmbeddedRedis: cfg.RedisURL.IsZero()}, nil
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		log.Info("no worker runs on this data folder: starting Postgres alone; what is accepted waits for a worker", "folder", dir)
		return OpenBackend(ctx, cfg, BackendOptions{Logger: log})
	}
	return nil, fmt.Errorf("find the running worker: %w", err)
}
