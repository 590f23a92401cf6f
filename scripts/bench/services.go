//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
)

// services are Herald's programs and a Postgres, which all measurements share.
type services struct {
	programs trial.Programs
	postgres *trial.Postgres
	data     string // folder of Postgres's data, and of other files that are removed at the end
	logs     string // folder for the output of the processes
}

// withServices builds the programs, starts Postgres and calls do. Without a folder for logs, it keeps the logs only if
// do fails.
func withServices(ctx context.Context, logs string, do func(services) error) (err error) {
	s := services{logs: logs}
	if logs == "" {
		if s.logs, err = os.MkdirTemp("", "herald-bench-"); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w (logs: %s)", err, s.logs)
		} else if logs == "" {
			err = os.RemoveAll(s.logs)
		}
	}()
	if s.data, err = os.MkdirTemp("", "herald-bench-postgres-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.data)) }()
	// If this process is root, the server runs as another user, which must be able to traverse the folder.
	if err := os.Chmod(s.data, 0o711); err != nil {
		return err
	}
	say("building Herald, starting Postgres")
	if s.programs, err = trial.Build(ctx, ".", filepath.Join(s.logs, "bin")); err != nil {
		return err
	}
	if s.postgres, err = trial.StartPostgres(ctx, s.data, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		err = errors.Join(err, s.postgres.Close(stop))
	}()
	return do(s)
}

// onSite calls do with a Herald that has an empty database of that name and an empty Redis.
func (s *services) onSite(ctx context.Context, database string, do func(*trial.Site) error) (err error) {
	site, err := trial.Open(ctx, trial.Config{Programs: s.programs, Postgres: s.postgres, Database: database,
		Logs: filepath.Join(s.logs, database)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	return do(site)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format(time.TimeOnly)+" "+format+"\n", args...)
}
