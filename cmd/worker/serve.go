package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/agentherald/herald/internal/app"
	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/doctor"
	"github.com/agentherald/herald/internal/operator/report"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/postgres"
)

type serveCmd struct {
	Ephemeral bool `help:"Embedded services keep nothing when the worker stops. Commands do not find them."`
}

func (c *serveCmd) Run(a *command) error {
	// Otherwise a log line ends the worker during its calls once the log's reader has ended, as tee does at Ctrl-C.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if f, ok := a.err.(*os.File); ok {
		a.log = logging.NewBounded(f, a.cfg.LogLevel, a.cfg.LogFormat)
		queue.LogDriver(a.log)
	}
	// Without GOMEMLIMIT the heap may double and exceed the container's memory limit. The limit is nine tenths of the
	// container's memory, and leaves the rest to memory outside of the heap.
	limit, err := memlimit.Set()
	a.log.Debug("memory limit of the Go runtime", "bytes", limit, "error", err)
	return app.Run(a.ctx, a.cfg, app.Options{Ephemeral: c.Ephemeral, Supervised: true, Logger: a.log})
}

type configCmd struct{ jsonFlag }

func (c *configCmd) Run(a *command) error {
	settings := a.cfg.Settings()
	// The defaults of these folders depend on the user, so package config has none.
	folders := map[string]string{"HERALD_DATA": embedded.DefaultDataDir(), "HERALD_CACHE": embedded.DefaultCacheDir()}
	for i, s := range settings {
		settings[i].Value = cmp.Or(s.Value, folders[s.Name])
	}
	return c.printAnswer(a, settings, nil, func() {
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		for _, s := range settings {
			source := s.Source
			if source == "not read" && s.Help != "" {
				source = s.Help
			}
			fmt.Fprintf(w, "%s\t%s\t(%s)\n", text.Printable(s.Name), orDash(s.Value), text.Printable(source))
		}
		w.Flush()
	})
}

type migrateCmd struct {
	Apply  migrateApplyCmd  `cmd:"" default:"1" help:"Apply pending migrations (default)."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations."`
}

type migrateApplyCmd struct{}

func (c *migrateApplyCmd) Run(a *command) error {
	url, stop, err := a.openDatabase()
	if err != nil {
		return err
	}
	defer stop()
	done, err := postgres.Migrate(a.ctx, url)
	for _, m := range done {
		fmt.Fprintf(a.out, "applied %s\n", m.Name)
	}
	if err == nil && len(done) == 0 {
		fmt.Fprintln(a.out, "nothing to apply")
	}
	return err
}

type migrateStatusCmd struct{ jsonFlag }

func (c *migrateStatusCmd) Run(a *command) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.timeout)
	defer cancel()
	url, stop, err := a.openDatabase()
	if err != nil {
		return err
	}
	defer stop()
	all, err := postgres.Migrations(ctx, url)
	if err != nil && ctx.Err() != nil && a.ctx.Err() == nil {
		return &operator.LateError{Within: a.timeout}
	}
	return c.printAnswer(a, all, err, func() {
		for _, m := range all {
			when := "pending"
			if !m.AppliedAt.IsZero() {
				when = "applied " + report.Time(&m.AppliedAt)
			}
			fmt.Fprintf(a.out, "%s  %s\n", m.Name, when)
		}
	})
}

type embeddedCmd struct {
	Fetch embeddedFetchCmd `cmd:"" help:"Fetch Postgres and Redis into the cache if this machine lacks them; the system is not changed."`
}

type embeddedFetchCmd struct{}

func (c *embeddedFetchCmd) Run(a *command) error {
	return embedded.Fetch(a.ctx, embedded.Config{CacheDir: a.cfg.CacheDir, Logger: a.log})
}

type doctorCmd struct{ jsonFlag }

var errSick = errors.New("something is wrong, see the lines marked FAIL")

func (c *doctorCmd) Run(a *command) error {
	findings := doctor.Diagnose(a.ctx, a.newOperator())
	err := c.printAnswer(a, findings, nil, func() {
		for _, f := range findings {
			fmt.Fprintf(a.out, "%-4s  %-14s %s\n", f.Mark, f.Check, text.Printable(f.Text))
		}
	})
	if err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool { return !f.OK }) {
		return errSick
	}
	return err
}
