package main

import (
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/report"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

type agentCmd struct {
	List    agentListCmd    `cmd:"" help:"List agents that Herald has delivered to, or meant to."`
	Show    agentShowCmd    `cmd:"" help:"Show an agent's endpoint, state, totals and last error."`
	Resolve agentResolveCmd `cmd:"" help:"Resolve an agent now, or any URI, and show every step."`
	Probe   agentProbeCmd   `cmd:"" help:"Connect to an agent, list its tools and show a delivery's request. Calls no tool without --send."`
	Check   agentCheckCmd   `cmd:"" help:"Check whether an MCP server can receive deliveries, rule by rule. Calls no tool without --send."`
	Enable  agentEnableCmd  `cmd:"" help:"Deliver to an agent again, and release deliveries that are held because it was disabled."`
	Disable agentDisableCmd `cmd:"" help:"Hold an agent's deliveries from now on (agent_disabled)."`
	Policy  agentPolicyCmd  `cmd:"" help:"Set how an agent is treated, or show it when nothing is set."`
}

type agentListCmd struct {
	operator.AgentFilter
	jsonFlag
}

func (c *agentListCmd) Run(a *command) error {
	if c.Chain != nil {
		if err := checkChain(*c.Chain); err != nil {
			return err
		}
	}
	page, err := a.newOperator().ListAgents(a.ctx, c.AgentFilter)
	return c.printAnswer(a, page, err, func() {
		head := []any{"AGENT", "STATE"}
		switch c.Sort {
		case records.SortFailing:
			head = append(head, "FAILED 24H", "CALLS 24H", "FAILING SINCE")
		case records.SortSlow:
			head = append(head, "MEAN CALL")
		}
		t := a.newTable(append(head, "QUEUED", "RUNNING", "WAITING", "HELD", "LAST OK",
			"SERVER", "PROTOCOL", "TOOLS", "ENDPOINT", "LAST ERROR")...)
		for _, r := range page.Agents {
			row := []any{erc8004.FormatAgent(r.ChainID, r.AgentID), r.State}
			switch c.Sort {
			case records.SortFailing:
				row = append(row, r.FailedOfDay, r.CallsOfDay, report.Time(r.FailingSince))
			case records.SortSlow:
				row = append(row, report.Millis(r.MeanMs))
			}
			t.addRow(append(row, r.Open[outcome.Queued], r.Open[outcome.Running],
				r.Open[outcome.Waiting], r.Open[outcome.Held], report.Time(r.LastOKAt),
				text.Shorten(report.Server(r.ServerInfo)),
				r.Protocol, report.CountTools(r.Tools), text.Shorten(r.Endpoint), text.Shorten(r.LastError))...)
		}
		a.endPage(t, page.Next)
	})
}

type agentShowCmd struct {
	operator.AgentRef
	jsonFlag
}

func (c *agentShowCmd) Run(a *command) error {
	shown, err := a.newOperator().ShowAgent(a.ctx, c.AgentRef)
	return c.printAnswer(a, shown, err, func() {
		a.printFacts(report.Agent(shown))
		for _, line := range report.Tokens(shown.Tokens) {
			fmt.Fprintln(a.out, line)
		}
	})
}

// agentChange holds the options of a command that changes an agent.
type agentChange struct {
	operator.AgentRef
	actorFlag
	jsonFlag
}

type agentEnableCmd struct{ agentChange }

func (c *agentEnableCmd) Run(a *command) error {
	change, err := a.newOperator().EnableAgent(a.ctx, c.AgentRef, c.actorName(), true)
	return c.printAnswer(a, change, err, func() {
		fmt.Fprintf(a.out, "%s is enabled; %s released (audit %d)\n", change.Name,
			text.Count(change.Released, "held delivery was", "held deliveries were"), change.Audit)
	})
}

type agentDisableCmd struct{ agentChange }

func (c *agentDisableCmd) Run(a *command) error {
	change, err := a.newOperator().EnableAgent(a.ctx, c.AgentRef, c.actorName(), false)
	return c.printAnswer(a, change, err, func() {
		warnUnseen(a, change, "it is disabled")
		fmt.Fprintf(a.out, "%s is disabled: its deliveries are held, except those that workers have claimed; "+
			"`worker agent enable` releases them (audit %d)\n", change.Name, change.Audit)
	})
}

type agentPolicyCmd struct {
	agentChange
	operator.PolicyEdit
}

func (c *agentPolicyCmd) Run(a *command) error {
	change, err := a.newOperator().EditPolicy(a.ctx, c.AgentRef, c.actorName(), c.PolicyEdit)
	return c.printAnswer(a, change, err, func() {
		warnUnseen(a, change, "the policy is set")
		fmt.Fprintf(a.out, "%s: %s\n", change.Name, operator.DescribePolicy(*change.Policy))
		if change.Problem != "" {
			fmt.Fprintln(a.err, "warning:", text.Printable(change.Problem))
		}
		if len(change.Levels) == 0 {
			return
		}
		t := a.newTable("LEVEL", "RULE", "CONTENT")
		for _, l := range change.Levels {
			settings := l.Policy
			if settings.Filters = nil; settings.String() != "{}" {
				t.addRow(l.Level, "", settings.String())
			}
			for i, r := range l.Policy.Filters {
				t.addRow(l.Level, i+1, text.Shorten(text.Printable(r.String())))
			}
		}
		t.Flush()
	})
}

// warnUnseen warns that the agent's number may be wrong.
func warnUnseen(a *command, change operator.AgentChange, done string) {
	if change.Unseen {
		fmt.Fprintf(a.out, "%s was never seen: no delivery was ever accepted for it. "+
			"Check the number; %s nevertheless.\n", change.Name, done)
	}
}

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
