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
	d.settings()
	for _, check := range []func(context.Context){d.services, d.port, d.chains, d.gateways} {
		check(ctx)
	}
	d.commands()
	d.servers()
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

func (d *doctor) within(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx)
}

// settings are whole, or there would be no doctor; what is left is names that nothing reads, and the keyset.
func (d *doctor) settings() {
	d.add("configuration", nil, "All settings are valid.")
	for _, m := range d.Settings.Misspelt() {
		d.warn("configuration", m.Name+": "+m.Explain())
	}
	if !d.Settings.Keyset.IsZero() {
		_, err := d.Backend.Keyset()
		d.add("keyset", err, "HERALD_KEYSET can be used")
	}
}
