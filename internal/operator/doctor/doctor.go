package operator

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/embedded"
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

// doctor looks at everything that a worker needs, one check after the other.
type doctor struct {
	*Operator
	findings []Finding
	run      embedded.RunFile // of the worker that runs on the data folder; zero: none, or it was not looked for
}

// Diagnose checks what the worker needs. It starts nothing and changes nothing.
func (o *Operator) Diagnose(ctx context.Context) []Finding {
	d := &doctor{Operator: o}
	d.checkSettings()
	for _, check := range []func(context.Context){d.checkServices, d.checkPort, d.checkChains, d.checkGateways} {
		check(ctx)
	}
	d.checkCommands()
	d.checkServersFile()
	return d.findings
}

// add notes that a check failed, or with no error that it did not.
func (d *doctor) add(check string, err error, text string) {
	mark := MarkOK
	if err != nil {
		mark, text = MarkFail, err.Error()
	}
	d.findings = append(d.findings, Finding{check, mark, err == nil, text})
}

// warn notes what does not stop a worker.
func (d *doctor) warn(check, text string) {
	d.findings = append(d.findings, Finding{check, MarkWarn, true, text})
}

// patience is how long one check may take.
const patience = 5 * time.Second

func (d *doctor) runBounded(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx)
}

// checkSettings are whole, or there would be no doctor; what is left is names that nothing reads, and the keyset.
func (d *doctor) checkSettings() {
	d.add("configuration", nil, "All settings are valid.")
	for _, m := range d.Settings.Misspelt() {
		d.warn("configuration", m.Name+": "+m.Explain())
	}
	if !d.Settings.Keyset.IsZero() {
		_, err := d.Backend.Keyset()
		d.add("keyset", err, "HERALD_KEYSET can be used")
	}
}
