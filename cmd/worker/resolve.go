package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
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
		return cmp.Or(c.printAnswer(a, d, err, func() { printDocument(a, d) }), d.End(c.Check))
	}
	r, err := inspect.Resolve(a.ctx, a.newOperator(), operator.AgentRef{Agent: c.Agent, Registry: c.Registry})
	return cmp.Or(c.printAnswer(a, r, err, func() { printResolution(a, r) }), r.End(c.Check))
}

func printResolution(a *command, r inspect.Resolution) {
	fmt.Fprintf(a.out, "%s\n\n", r.Name)
	t := a.newTable("STEP", "TOOK", "SOURCE", "FOUND")
	for _, s := range r.Steps {
		t.addRow(s.What, formatMillis(s.TookMs), s.Source, s.Found)
	}
	t.addRow("all", formatMillis(r.TookMs))
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

func printDocument(a *command, d inspect.Document) {
	f := a.newFields()
	f.addRow("uri", d.URI)
	f.addRow("source", strings.TrimSpace(d.Source+" "+describeAnchor(d.Source, d.DNSLink)))
	f.addRow("cid", d.CID)
	f.addRow("from", d.From)
	f.addRow("media type", d.MediaType)
	if d.Bytes != nil {
		f.addRow("size", fmt.Sprintf("%d bytes in %s", *d.Bytes, formatMillis(d.TookMs)))
	}
	f.addRow("keccak256", d.Keccak256)
	f.addRow("hash", describeHash(erc8004.Verdict(d.Hash)))
	f.addRow("name", d.Name)
	for i, e := range d.MCP {
		address := e.Address
		if e.Version != "" {
			address += " (" + e.Version + ")"
		}
		f.addRow(fmt.Sprintf("mcp %d", i+1), fmt.Sprintf("%s %s %s: %s", e.From, e.Transport, address, e.Verdict))
	}
	f.Flush()
	printVerdict(a, d.Verdict, d.NextStep)
}

// describeAnchor says how the bytes of a document were verified.
func describeAnchor(source string, dnsLink bool) string {
	switch {
	case source == ipfs.SourceCID:
		return "(verified against the CID)"
	case source == ipfs.SourceIPNS && dnsLink:
		return "(the name was looked up in DNS, DNSLink: not verified)"
	case source == ipfs.SourceIPNS:
		return "(verified against the name's signed record)"
	case source == inspect.SourceFile:
		return "(of this machine)"
	case source == ipfs.SourceData:
		return "(in the URI itself)"
	case source == "":
		return ""
	}
	return "(as its server has it now: not verified)"
}

// describeHash explains the result of comparing a document with its on-chain hash.
func describeHash(v erc8004.Verdict) string {
	switch v {
	case "":
		return ""
	case erc8004.Raw:
		return "raw: keccak256 of exactly these bytes"
	case erc8004.SHA256:
		return "sha256: SHA-256 of exactly these bytes"
	case erc8004.NotGiven:
		return "not_given: a zero hash says nothing"
	case erc8004.Mismatch:
		return "mismatch: not of these bytes, nor of any known form of them"
	}
	return string(v) + ": keccak256 of another form of the same document"
}
