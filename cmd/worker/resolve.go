package main

import (
	"cmp"
	"fmt"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/operator/report"
)

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
