package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/service"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

// Marks of findings: warn is what a worker starts and delivers with, but not as somebody would want it.
const (
	markOK   = "ok"
	markWarn = "warn"
	markFail = "FAIL"
)

// finding is one line of the doctor.
type finding struct {
	Check string `json:"check"`
	Mark  string `json:"mark"` // ok, warn or FAIL
	OK    bool   `json:"ok"`   // false: FAIL
	Text  string `json:"text"`
}

var errSick = errors.New("something is wrong, see the lines marked FAIL")

// doctor looks at everything that a worker needs, one check after the other.
type doctor struct {
	*app
	findings []finding
	run      embedded.RunFile // of the worker that runs on the data folder; zero: none, or it was not looked for
}

// Run checks what the worker needs. It starts nothing and changes nothing.
func (c *doctorCmd) Run(a *app) error {
	d := &doctor{app: a}
	for _, check := range []func(){d.settings, d.services, d.port, d.chains, d.gateways, d.commands, d.servers} {
		check()
	}
	sick := false
	for _, f := range d.findings {
		sick = sick || f.Mark == markFail
		if !c.JSON {
			fmt.Fprintf(a.out, "%-4s  %-14s %s\n", f.Mark, f.Check, printable(f.Text))
		}
	}
	if c.JSON {
		if err := writeJSON(a, d.findings); err != nil {
			return err
		}
	}
	if sick {
		return errSick
	}
	return nil
}

// add notes that a check failed, or with no error that it did not.
func (d *doctor) add(check string, err error, text string) {
	mark := markOK
	if err != nil {
		mark, text = markFail, err.Error()
	}
	d.findings = append(d.findings, finding{check, mark, err == nil, text})
}

// warn notes what does not stop a worker.
func (d *doctor) warn(check, text string) {
	d.findings = append(d.findings, finding{check, markWarn, true, text})
}

// patience is how long one check may take.
const patience = 5 * time.Second

func (d *doctor) within(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	return do(ctx)
}

// settings are whole, or there would be no doctor; what is left is names that nothing reads, and the keyset.
func (d *doctor) settings() {
	d.add("configuration", nil, "All settings are valid.")
	for _, m := range d.cfg.Misspelt() {
		d.warn("configuration", m.Name+": "+m.Words())
	}
	if !d.cfg.Keyset.IsZero() {
		_, err := service.Keyset(d.cfg)
		d.add("keyset", err, "HERALD_KEYSET can be used")
	}
}

type embeddedCmd struct {
	Fetch embeddedFetchCmd `cmd:"" help:"Fetch Postgres and Redis into the cache if this machine lacks them; the system is not changed."`
}

type embeddedFetchCmd struct{}

func (c *embeddedFetchCmd) Run(a *app) error {
	return embedded.Fetch(a.ctx, embedded.FetchConfig{CacheDir: a.cfg.CacheDir, Logger: a.log})
}
