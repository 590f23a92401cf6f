package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator/doctor"
)

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
