//go:build linux

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// services are Herald's programs and a Postgres, which all measurements share.
type services struct {
	programs trial.Programs
	postgres *trial.Postgres
	data     string // folder of Postgres's data, and of other files that are removed at the end
	logs     string // folder for the output of the processes
}

// withServices builds the programs, starts Postgres and calls do. It keeps the logs only if do fails.
func withServices(ctx context.Context, do func(services)) {
	s := services{logs: script.Must(os.MkdirTemp("", "herald-bench-"))}
	err := script.Try(func() {
		s.data = script.Must(os.MkdirTemp("", "herald-bench-postgres-"))
		defer script.Close(func() error { return os.RemoveAll(s.data) })
		// If this process is root, the server runs as another user, which must be able to traverse the folder.
		script.Check(os.Chmod(s.data, 0o711))
		say("building Herald, starting Postgres")
		s.programs = script.Must(trial.Build(ctx, ".", filepath.Join(s.logs, "bin")))
		s.postgres = script.Must(trial.StartPostgres(ctx, s.data, slog.New(slog.DiscardHandler)))
		defer script.Close(script.Within(ctx, startTimeout, s.postgres.Close))
		do(s)
	})
	if err != nil {
		script.Fail("%w (logs: %s)", err, s.logs)
	}
	script.Check(os.RemoveAll(s.logs))
}

// onSite calls do with a Herald that has an empty database of that name and an empty Redis.
func (s *services) onSite(ctx context.Context, database string, do func(*trial.Site)) {
	site := script.Must(trial.Open(ctx, trial.Config{Programs: s.programs, Postgres: s.postgres, Database: database,
		Logs: filepath.Join(s.logs, database)}))
	defer script.Close(site.Close)
	do(site)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format(time.TimeOnly)+" "+format+"\n", args...)
}
