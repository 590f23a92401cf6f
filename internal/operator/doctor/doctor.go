// Package doctor checks everything that a worker needs: settings, keyset, Postgres, Redis, the port, chains, gateways,
// commands and the servers file. It starts no services and changes nothing.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
)

// Marks of findings. With a warning a worker still starts and delivers, but something should probably be changed.
const (
	MarkOK   = "ok"
	MarkWarn = "warn"
	MarkFail = "FAIL"
)

// Finding is one line of the doctor's report.
type Finding struct {
	Check string `json:"check"`
	Mark  string `json:"mark"` // ok, warn or FAIL
	OK    bool   `json:"ok"`   // false only for FAIL
	Text  string `json:"text"`
}

// check is one check. run returns a finding for each part that it checks, or none if there is nothing to check.
type check struct {
	name string
	run  func(*doctor, context.Context) []Finding
}

// checks run in this order: later ones use what earlier ones store in the doctor.
var checks = []check{
	{"configuration", (*doctor).checkSettings},
	{"keyset", (*doctor).checkKeyset},
	{"embedded", (*doctor).findEmbedded},
	{"programs", (*doctor).findPrograms},
	{"postgres", (*doctor).checkPostgres},
	{"migrations", (*doctor).checkMigrations},
	{"keyset", (*doctor).compareKeysets},
	{"signing", (*doctor).checkSigningKeys},
	{"tokens", (*doctor).checkTokens},
	{"oauth", (*doctor).askIssuers},
	{"redis", (*doctor).checkRedis},
	{"clocks", (*doctor).compareClocks},
	{"port", (*doctor).checkPort},
	{"worker", (*doctor).compareSettings},
	{"deliveries", (*doctor).listNeeds},
	{"chains", (*doctor).checkChains},
	{"followed", (*doctor).checkFollowed},
	{"gateways", (*doctor).checkGateways},
	{"stdio", (*doctor).checkCommands},
	{"servers", (*doctor).checkServersFile},
	{"policy", (*doctor).checkPolicyFile},
}

// doctor holds the state of the checks, including results that later checks use.
type doctor struct {
	*operator.Operator
	run             embedded.RunFile  // of the worker on the data folder; zero if none runs or it was not searched for
	database, redis secret.Secret     // from the settings or from that worker; zero if there is none
	store           *operator.Session // nil if Postgres does not answer
	migrated        bool              // all migrations are applied
	clocks          []clock           // of Postgres and Redis, if they answer
	tasks           int               // in Redis, for workers
	issuers         map[issuer]int    // issuers of stored credentials, with the number of credentials
	worker          string            // address of the running worker; "" if none runs at the configured address
}

// Diagnose runs every check and returns all findings.
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

// reportResult reports a failure if err is not nil, else the formatted text as ok.
func reportResult(err error, format string, args ...any) []Finding {
	if err != nil {
		return reportFailure("%v", err)
	}
	return reportOK(format, args...)
}

// checkTimeout bounds one request.
const checkTimeout = 5 * time.Second

// ask calls question with a timeout of checkTimeout.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return question(ctx)
}

// try is ask for a function without a result.
func try(ctx context.Context, do func(context.Context) error) error {
	_, err := ask(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// checkSettings warns about misspelt variables. The settings themselves are valid, or the doctor could not run.
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

// compareKeysets warns about running workers that cannot decrypt what this keyset encrypts, or the reverse, and about
// those that lack a key of stored tokens. During a rotation of keys, keysets differ, but each has all keys in use.
func (d *doctor) compareKeysets(ctx context.Context) (findings []Finding) {
	if !d.migrated {
		return nil
	}
	keys, err := d.Backend.Keyset()
	if err != nil {
		return nil // checkKeyset reports the error
	}
	workers, err := ask(ctx, d.store.Workers)
	if err != nil {
		return reportWarning("%v", err)
	}
	uses, err := ask(ctx, d.store.SealingKeys)
	if err != nil {
		return reportWarning("%v", err)
	}
	for _, w := range workers {
		if !w.HasKey(keys.PrimaryID()) || !keys.Has(w.SealsWith) {
			findings = append(findings, reportWarning("the worker on %s (%s) has another keyset than this shell: "+
				"it encrypts with key %d, this shell with key %d, and one cannot decrypt what the other encrypts. "+
				"Give all workers the same keyset, and restart them", text.Printable(w.Host), w.ID, w.SealsWith,
				keys.PrimaryID())...)
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(uses)) {
			if keys.Has(id) && !w.HasKey(id) { // checkTokens reports the keys that this keyset lacks too
				findings = append(findings, reportWarning("the worker on %s (%s) lacks key %d, which encrypts %s, and "+
					"holds the deliveries that need it. Give the worker the keyset of this shell, and restart it",
					text.Printable(w.Host), w.ID, id, text.Count(uses[id], "stored token", "stored tokens"))...)
			}
		}
	}
	return findings
}

// checkSigningKeys checks that the keyset decrypts the signing keys. If it decrypts none, no worker starts. If none is
// stored, the first worker makes one.
func (d *doctor) checkSigningKeys(ctx context.Context) []Finding {
	if !d.migrated || d.Settings.PublicURL == "" {
		return nil
	}
	keys, err := d.Backend.Keyset()
	if err != nil {
		return nil // checkKeyset reports the error
	}
	stored, err := ask(ctx, d.store.SigningKeys)
	if err != nil {
		return reportFailure("%v", err)
	}
	var sealed []string
	for _, k := range stored {
		if id, ok := secret.KeyID(k.Ciphertext); !ok || !keys.Has(id) {
			sealed = append(sealed, k.ID)
		}
	}
	switch n := len(stored); {
	case n == 0:
		return nil
	case len(sealed) == 0:
		return reportOK("%s be used", text.Count(n, "signing key can", "signing keys can"))
	case len(sealed) < n:
		return reportWarning("%d of %d signing keys are encrypted with keys that HERALD_KEYSET lacks: %s",
			len(sealed), n, firstFew(sealed))
	}
	return reportFailure("no signing key can be used, and no worker starts: the keys that encrypted %s are not in "+
		"HERALD_KEYSET. Put the keyset back that has them, or run `worker signing-key rotate`", firstFew(sealed))
}
