package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/operator/report"
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
	a.printFacts(report.Probe(r))
	printArguments(a, r)
	if got := r.Answer; got != nil {
		fmt.Fprintf(a.out, "\nanswered in %s: %s\n", report.Millis(got.TookMs),
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

type agentCheckCmd struct {
	Target    string `arg:"" help:"The URL of an MCP server, or a registered agent as in 8453:42." placeholder:"URL|CHAIN:AGENT"`
	Registry  string `help:"The agent's IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	Send      bool   `help:"Call the tools with samples. They are marked: probe: true in _meta, and a random deliveryId that no delivery has."`
	As        string `help:"With a URL: the agent that the samples are about. Default: ${default}." default:"8453:42" placeholder:"CHAIN:AGENT"`
	Transport string `help:"With a URL: http (streamable HTTP, default) or sse (HTTP+SSE)." enum:",http,sse" default:"" placeholder:"http|sse"`
	jsonFlag
}

func (c *agentCheckCmd) Run(a *command) error {
	ask := inspect.ProbeRequest{AgentRef: operator.AgentRef{Agent: c.Target, Registry: c.Registry},
		Transport: c.Transport, Send: c.Send}
	if strings.Contains(c.Target, "://") {
		ask.Agent, ask.URL = c.As, c.Target
	}
	found, err := inspect.CheckAgent(a.ctx, a.newOperator(), ask)
	err = c.printAnswer(a, found, err, func() {
		t := a.newTable("CHECK", "VERDICT", "FOUND")
		for _, check := range found.Checks {
			t.addRow(check.Name, check.Verdict, text.Printable(check.Found))
		}
		t.Flush()
		if ask.URL == "" {
			fmt.Fprintln(a.out)
			printVerdict(a, found.Probe.Verdict, found.Probe.NextStep)
		}
		if !c.Send {
			fmt.Fprintln(a.out, "note: add --send to call the tools with samples")
		}
		printNotes(a, found.Probe.Notes)
	})
	if err == nil && found.Faults > 0 {
		err = fmt.Errorf("the server has faults (%d, see above)", found.Faults)
	}
	return err
}

type agentResolveCmd struct {
	Agent    string  `arg:"" optional:"" help:"The agent, as in 8453:42." placeholder:"CHAIN:AGENT"`
	Registry string  `help:"Its IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	URI      *string `name:"uri" help:"Resolve this URI instead, without a chain. A path or file:// is read from this machine." placeholder:"URI"`
	Hash     string  `help:"With --uri: compare the bytes with this feedbackHash." placeholder:"0x…"`
	Check    bool    `help:"Exit 1 unless a delivery would call the agent; with --uri: unless the document is one that can be used."`
	jsonFlag
}

func (c *agentResolveCmd) Run(a *command) error {
	switch {
	case c.URI != nil && (c.Agent != "" || c.Registry != ""):
		return operator.NewMisuse("--uri is resolved without a chain: leave the agent out")
	case c.URI == nil && c.Agent == "":
		return operator.NewMisuse("name an agent, as in 8453:42, or a URI with --uri")
	case c.URI == nil && c.Hash != "":
		return operator.NewMisuse("--hash is for --uri: a registration document has no hash on chain")
	case c.URI != nil:
		d, err := inspect.ResolveURI(a.ctx, a.newOperator(), *c.URI, c.Hash)
		return cmp.Or(c.printAnswer(a, d, err, func() {
			a.printFacts(report.Document(d))
			printVerdict(a, d.Verdict, d.NextStep)
		}), d.End(c.Check))
	}
	r, err := inspect.Resolve(a.ctx, a.newOperator(), operator.AgentRef{Agent: c.Agent, Registry: c.Registry})
	return cmp.Or(c.printAnswer(a, r, err, func() { printResolution(a, r) }), r.End(c.Check))
}

func printResolution(a *command, r inspect.Resolution) {
	fmt.Fprintf(a.out, "%s\n\n", r.Name)
	t := a.newTable("STEP", "TOOK", "SOURCE", "FOUND")
	for _, s := range r.Steps {
		t.addRow(s.What, report.Millis(s.TookMs), s.Source, s.Found)
	}
	t.addRow("all", report.Millis(r.TookMs))
	t.Flush()
	fmt.Fprintln(a.out)
	printVerdict(a, r.Verdict, r.NextStep)
	if r.Note != "" {
		printNotes(a, []string{r.Note})
	}
}

// printVerdict prints the verdict, and the next step if there is one.
func printVerdict(a *command, verdict, nextStep string) {
	fmt.Fprintf(a.out, "verdict: %s\n", text.Printable(verdict))
	if nextStep != "" {
		fmt.Fprintf(a.out, "next: %s\n", text.Printable(nextStep))
	}
}
