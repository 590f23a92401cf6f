package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/store"
)

type agentProbeCmd struct {
	inspect.ProbeRequest
	Check bool `help:"Exit 1 unless a delivery would be delivered, or with no --send: unless the tool would be called."`
	jsonFlag
}

func (c *agentProbeCmd) Run(a *command) error {
	found, err := inspect.ProbeAgent(a.ctx, a.newOperator(), c.ProbeRequest)
	return cmp.Or(c.printAnswer(a, found, err, func() {
		printProbe(a, found)
		if found.Fits && !c.Send {
			fmt.Fprintln(a.out, "note: add --send to call the tool with the sample")
		}
	}), found.End(c.Check))
}

// printProbe prints the result of a probe in the order of its steps.
func printProbe(a *command, r inspect.Probe) {
	fmt.Fprintf(a.out, "%s\n\n", r.Name)
	f := a.newFields()
	for _, s := range r.Steps {
		f.addRow(s.What, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", s.Source, s.Found, formatMillis(s.TookMs))))
	}
	if e := r.Endpoint; e != nil {
		f.addRow("called at", fmt.Sprintf("%s over %s, as %s says", e.Address, e.Transport, e.From))
	}
	if r.Server != nil {
		f.addRow("server", cmp.Or(strings.TrimSpace(r.Server.Name+" "+r.Server.Version), "it does not name itself"))
		f.addRow("protocol", r.Protocol)
		tools := describeTools(store.ToolList(r.Tools))
		if r.ToolsCut {
			tools += "; more than is read"
		}
		f.addRow("tools", fmt.Sprintf("%s, listed in %s", tools, formatMillis(r.ListedMs)))
	}
	f.Flush()
	printArguments(a, r)
	if got := r.Answer; got != nil {
		fmt.Fprintf(a.out, "\nanswered in %s: %s\n", formatMillis(got.TookMs),
			cmp.Or(text.Printable(text.Shorten(got.Text)), "nothing that this version can read"))
	}
	fmt.Fprintln(a.out)
	printVerdict(a, r.Verdict, r.NextStep)
	printNotes(a, r.Notes)
	if r.Kept {
		fmt.Fprintln(a.out, "the results are stored: `worker agent show` lists them")
	}
}

func printNotes(a *command, notes []string) {
	for _, n := range notes {
		fmt.Fprintf(a.out, "note: %s\n", text.Printable(n))
	}
}

// printArguments prints a table of the sample's arguments and the values that are sent.
func printArguments(a *command, r inspect.Probe) {
	if len(r.Arguments) == 0 {
		return
	}
	fmt.Fprintf(a.out, "\na sample %s, fitted to %s:\n", r.Kind, text.Printable(r.Tool))
	t := a.newTable("ARGUMENT", "SAMPLE", "SENT")
	for _, arg := range r.Arguments {
		sent := formatValue(arg.Sent)
		switch {
		case !r.Fits:
			sent = "-"
		case arg.Change == inspect.ArgumentDropped:
			sent = "left out"
		case arg.Change == inspect.ArgumentKept:
			sent = "as it is"
		}
		t.addRow(arg.Name, formatValue(arg.Sample), sent)
	}
	t.Flush()
}

// formatValue shortens a value for a table.
func formatValue(raw json.RawMessage) string { return text.Cut(string(raw), 48, "…") }
