package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

type serveCmd struct {
	Ephemeral bool `help:"Embedded services keep nothing when the worker stops."`
}

func (c *serveCmd) Run(a *app) error {
	// Without GOMEMLIMIT the collector lets the heap double, past what the container may hold; nine tenths of that leave room for the rest.
	limit, err := memlimit.Set()
	a.log.Debug("memory limit of the Go runtime", "bytes", limit, "error", err)
	return service.Run(a.ctx, a.cfg, service.Options{Ephemeral: c.Ephemeral, Supervised: true, Logger: a.log})
}

type configCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

func (c *configCmd) Run(a *app) error {
	settings := a.cfg.Settings()
	if c.JSON {
		return writeJSON(a, settings)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, s := range settings {
		value := s.Value
		if value == "" {
			value = "-"
		}
		source := s.Source
		if source == "not read" && s.Help != "" {
			source = s.Help
		}
		fmt.Fprintf(w, "%s\t%s\t(%s)\n", printable(s.Name), printable(value), printable(source))
	}
	return w.Flush()
}

type migrateCmd struct {
	Apply  migrateApplyCmd  `cmd:"" default:"1" help:"Apply what is pending (default)."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations."`
}

type migrateApplyCmd struct{}

func (c *migrateApplyCmd) Run(a *app) error {
	db, err := a.database()
	if err != nil {
		return err
	}
	defer db.close()
	done, err := store.Migrate(a.ctx, db.url)
	for _, m := range done {
		fmt.Fprintf(a.out, "applied %s\n", m.Name)
	}
	if err == nil && len(done) == 0 {
		fmt.Fprintln(a.out, "nothing to apply")
	}
	return err
}

type migrateStatusCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

func (c *migrateStatusCmd) Run(a *app) error {
	db, err := a.database()
	if err != nil {
		return err
	}
	defer db.close()
	ctx, cancel := context.WithTimeout(a.ctx, a.timeout)
	defer cancel()
	all, err := store.Migrations(ctx, db.url)
	if err != nil && ctx.Err() != nil && a.ctx.Err() == nil {
		return &lateError{a.timeout}
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, all)
	}
	for _, m := range all {
		when := "pending"
		if !m.AppliedAt.IsZero() {
			when = "applied " + m.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(a.out, "%s  %s\n", m.Name, when)
	}
	return nil
}

// writeJSON writes v for programs. Strangers' control and direction characters are escaped, so that it is safe on a terminal too.
func writeJSON(a *app, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r != '\n' && drivesTerminal(r) { // in JSON only strings can hold these, and there an escape means the same
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	_, err := io.WriteString(a.out, out.String())
	return err
}
