package backend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
)

// OpenStore waits for Postgres, at most wait, and checks its schema. With once, it asks Postgres only once. It migrates
// an embedded database. For another database it returns an error if migrations are pending. Commands use it.
func OpenStore(ctx context.Context, cfg *config.Config, b *Backend, wait time.Duration, once bool,
	log *slog.Logger) (*store.Store, error) {
	st, err := store.Open(postgres.Config{URL: b.DatabaseURL, LeaderURL: b.LeaderURL, MaxConns: int32(cfg.DBPool),
		CloseWithin: postgres.CommandClose})
	if err != nil {
		return nil, err
	}
	st.StrictOrder = cfg.StrictOrder
	look, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err = b.awaitPostgres(ctx, st, wait, once, log); err == nil {
		if err = b.MigrateOwn(ctx, look, st, log); err != nil && look.Err() != nil && ctx.Err() == nil {
			err = &AwayError{Within: wait, DataDir: b.ownerDataDir(), Err: explainSilence(err)}
		}
	}
	if err != nil {
		st.Close()
		return nil, err
	}
	return st, nil
}

// MigrateOwn migrates an embedded database. For another database it returns an error if migrations are pending. st is a
// store of that database. look bounds only the check for pending migrations.
func (b *Backend) MigrateOwn(ctx, look context.Context, st *store.Store, log *slog.Logger) error {
	if done, err := st.Migrated(look); done || err != nil {
		return err
	}
	all, err := postgres.Migrations(look, b.DirectURL())
	if err != nil {
		return err
	}
	var pending []string
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			pending = append(pending, filepath.Base(m.Name))
		}
	}
	switch {
	case len(pending) == 0:
		return nil
	case !b.EmbeddedDatabase:
		return fmt.Errorf("the database lacks %s (%s): run `worker migrate`",
			text.Count(len(pending), "migration", "migrations"), strings.Join(pending, ", "))
	}
	done, err := postgres.Migrate(ctx, b.DirectURL())
	if len(done) > 0 {
		log.Info("migrated the embedded database", "applied", len(done))
	}
	return err
}

// PublishRunFile writes run.json, with which commands on this machine find the embedded services. forget deletes it.
func (b *Backend) PublishRunFile(listen string) (forget func(), err error) {
	if b.DataDir == "" {
		return func() {}, nil
	}
	f := embedded.RunFile{PID: os.Getpid(), Listen: listen}
	if b.EmbeddedDatabase {
		f.DatabaseURL = b.DatabaseURL.Reveal()
	} else {
		f.Database = databaseName(b.DatabaseURL)
	}
	if b.EmbeddedRedis {
		f.RedisURL = b.RedisURL.Reveal()
	}
	if err := embedded.WriteRunFile(b.DataDir, f); err != nil {
		return nil, err
	}
	return func() { _ = embedded.RemoveRunFile(b.DataDir) }, nil
}

// JobLimits returns the limits that jobs are validated against.
func JobLimits(cfg *config.Config) job.Limits {
	return job.Limits{MaxTimeout: cfg.CallTimeout, Tools: cfg.Tools, Registries: cfg.ListedRegistries}
}
