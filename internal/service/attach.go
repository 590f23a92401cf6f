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
	if !cfg.DatabaseURL.IsZero() {
		return &Backend{DatabaseURL: cfg.DatabaseURL, RedisURL: cfg.RedisURL}, nil
	}
	dir := DataDir(cfg)
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case err == nil:
		return &Backend{DatabaseURL: secret.New(run.DatabaseURL), RedisURL: secret.New(run.RedisURL), DataDir: dir, EmbeddedDatabase: true, EmbeddedRedis: true}, nil
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		log.Info("no worker runs on this data folder: starting Postgres alone; what is accepted waits for a worker", "folder", dir)
		return OpenBackend(ctx, cfg, BackendOptions{Logger: log})
	}
	return nil, fmt.Errorf("find the running worker: %w", err)
}
