package main

import (
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
)

type agentCheckCmd struct {
	Target    string `arg:"" help:"The URL of an MCP server, or a registered agent as in 8453:42." placeholder:"URL|CHAIN:AGENT"`
	Registry  string `help:"The agent's IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	Send      bool   `help:"Call the tools with samples. They are marked: probe: true in _meta, and a random deliveryId that no delivery has."`
	As        string `help:"With a URL: the agent that the samples are about." default:"8453:42" placeholder:"CHAIN:AGENT"`
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
