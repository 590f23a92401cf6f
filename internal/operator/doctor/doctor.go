// Package doctor checks everything that a worker needs: settings, keyset, Postgres, Redis, the port, chains, gateways,
// commands and the servers file. It starts nothing and changes nothing.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

// Marks of findings: warn is what a worker starts and delivers with, but not as somebody would want it.
const (
	MarkOK   = "ok"
	MarkWarn = "warn"
	MarkFail = "FAIL"
)

// Finding is one line of the doctor.
type Finding struct {
	Check string `json:"check"`
	Mark  string `json:"mark"` // ok, warn or FAIL
	OK    bool   `json:"ok"`   // false: FAIL
	Text  string `json:"text"`
}

// check is one thing that is looked at. run returns a finding for each part of it, and none where there is nothing to
// look at.
type check struct {
	name string
	run  func(*doctor, context.Context) []Finding
}

// checks are made in this order: later ones use what earlier ones leave in the doctor.
var checks = []check{
	{"configuration", (*doctor).checkSettings},
	{"keyset", (*doctor).checkKeyset},
	{"embedded", (*doctor).findEmbedded},
	{"programs", (*doctor).findPrograms},
	{"postgres", (*doctor).checkPostgres},
	{"migrations", (*doctor).checkMigrations},
	{"tokens", (*doctor).checkTokens},
	{"oauth", (*doctor).askIssuers},
	{"deliveries", (*doctor).countStuck},
	{"redis", (*doctor).checkRedis},
	{"port", (*doctor).checkPort},
	{"worker", (*doctor).compareSettings},
	{"chains", (*doctor).checkChains},
	{"followed", (*doctor).checkFollowed},
	{"gateways", (*doctor).checkGateways},
	{"stdio", (*doctor).checkCommands},
	{"servers", (*doctor).checkServersFile},
}

// doctor is what the checks work with, and what they leave to the ones after them.
type doctor struct {
	*operator.Operator
	run             embedded.RunFile // of the worker that runs on the data folder; zero: none, or it was not looked for
	database, redis secret.Secret    // the configured ones, or those of that worker; zero: there is none
	store           *store.Store     // nil: Postgres does not answer
	migrated        bool             // the store has all migrations
	issuers         map[issuer]int   // how many stored credentials get their tokens from each
	worker          string           // address of the running worker; "": none runs at the configured one
}

// Diagnose makes every check.
func Diagnose(ctx context.Context, o *operator.Operator) []Finding {
	d := &doctor{Operator: o, database: o.Settings.DatabaseURL, redis: o.Settings.RedisURL}
	var findings []Finding
	for _, c := range checks {
		for _, f := range c.run(d, ctx) {
			f.Check = cmp.Or(f.Check, c.name)
			findings = append(findings, f)
		}
	}
	if d.store != nil {
		d.store.Close()
	}
	return findings
}

func reportOK(format string, args ...any) []Finding {
	return []Finding{{Mark: MarkOK, OK: true, Text: fmt.Sprintf(format, args...)}}
}

func reportWarning(format string, args ...any) []Finding {
	return []Finding{{Mark: MarkWarn, OK: true, Text: fmt.Sprintf(format, args...)}}
}

func reportFailure(format string, args ...any) []Finding {
	return []Finding{{Mark: MarkFail, Text: fmt.Sprintf(format, args...)}}
}

// reportResult reports a failure with an error, and without one what is said of a check that did not fail.
func reportResult(err error, format string, args ...any) []Finding {
	if err != nil {
		return reportFailure("%v", err)
	}
	return reportOK(format, args...)
}

// patience is how long one question may take.
const patience = 5 * time.Second

// ask puts one question.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return question(ctx)
}

// try is ask for what has no answer.
func try(ctx context.Context, do func(context.Context) error) error {
	_, err := ask(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// checkSettings: they are whole, or there would be no doctor. What is left is names that nothing reads.
func (d *doctor) checkSettings(context.Context) []Finding {
	findings := reportOK("All settings are valid.")
	for _, m := range d.Settings.Misspelt() {
		findings = append(findings, reportWarning("%s: %s", m.Name, m.Explain())...)
	}
	return findings
}

func (d *doctor) checkKeyset(context.Context) []Finding {
	if d.Settings.Keyset.IsZero() {
		return nil
	}
	_, err := d.Backend.Keyset()
	return reportResult(err, "HERALD_KEYSET can be used")
}
