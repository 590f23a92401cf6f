package main

import (
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
)

type policyCmd struct {
	Test policyTestCmd `cmd:"" help:"Show which stored deliveries or jobs a policy would skip."`
}

type policyTestCmd struct {
	File string `arg:"" help:"The policy, a JSON file." placeholder:"FILE"`
	Jobs string `help:"Test the jobs in this file (JSON Lines) instead of stored deliveries." placeholder:"FILE"`
	operator.Selection
	Limit int `help:"How many deliveries, the newest first." default:"1000"`
	jsonFlag
}

func (c *policyTestCmd) Run(a *command) error {
	r, err := a.newOperator().TestPolicy(a.ctx, c.File, c.Jobs, c.Selection, c.Limit)
	return c.printAnswer(a, r, err, func() {
		for _, w := range r.Warnings {
			fmt.Fprintln(a.err, "warning:", text.Printable(w))
		}
		t := a.newTable("RULE", "DELIVERIES", "SAMPLES", "FILTER")
		for i, e := range r.Rules {
			samples := make([]string, len(e.Samples))
			for i, id := range e.Samples {
				samples[i] = id.String()
			}
			t.addRow(i+1, e.Count, strings.Join(samples, " "), text.Shorten(text.Printable(e.Rule.String())))
		}
		t.addRow("none", r.NoMatch, "", "")
		t.Flush()
		fmt.Fprintf(a.out, "%d delivered, %d skipped, %d without a job\n", r.Delivered, r.Skipped, r.Unknown)
	})
}
