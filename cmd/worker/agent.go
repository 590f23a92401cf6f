package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store"
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
				row = append(row, r.FailedOfDay, r.CallsOfDay, formatTime(r.FailingSince))
			case records.SortSlow:
				row = append(row, formatMillis(r.MeanMs))
			}
			t.addRow(append(row, r.Open[store.Queued], r.Open[store.Running],
				r.Open[store.Waiting], r.Open[store.Held], formatTime(r.LastOKAt),
				text.Shorten(describeServer(r.ServerInfo)),
				r.Protocol, countTools(r.Tools), text.Shorten(r.Endpoint), text.Shorten(r.LastError))...)
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
	return c.printAnswer(a, shown, err, func() { printAgent(a, shown) })
}

func printAgent(a *command, r operator.Agent) {
	f := a.newFields()
	f.addRow("agent", erc8004.FormatAgent(r.ChainID, r.AgentID))
	f.addRow("registry", r.IdentityRegistry)
	state := r.State
	if !r.Enabled && state != "disabled" {
		state += ", disabled"
	}
	f.addRow("state", state)
	f.addRow("next step", r.NextStep)
	f.addRow("policy", operator.DescribePolicy(r.Policy))
	f.addRow("endpoint", r.Endpoint)
	if r.Effort != nil {
		f.addRow("effort", r.Effort.String())
	}
	f.addRow("server", describeServer(r.ServerInfo))
	f.addRow("protocol", r.Protocol)
	f.addRow("tools", describeTools(r.Tools))
	f.addRow("epoch", fmt.Sprint(r.Epoch))
	var open []string
	for _, s := range []store.Status{store.Queued, store.Running, store.Waiting, store.Held} {
		open = append(open, fmt.Sprintf("%d %s", r.Open[s], s))
	}
	f.addRow("open", strings.Join(open, ", "))
	f.addRow("ended", shortenJSON(r.Totals))
	f.addRow("last call", formatTime(r.LastCalledAt))
	f.addRow("last success", formatTime(r.LastOKAt))
	f.addTime("failing since", r.FailingSince)
	f.addRow("last hour", describeCalls(r.LastHour))
	f.addRow("last day", describeCalls(r.LastDay))
	if r.LastError != "" {
		f.addRow("last error", formatTime(r.LastErrorAt)+"  "+r.LastError)
	}
	f.addRow("known since", formatTime(&r.CreatedAt))
	for _, t := range r.Transfers {
		f.addRow("transferred",
			fmt.Sprintf("%s  to %s, from %s, in block %d", formatTime(&t.At), t.To, t.From, t.BlockNumber))
	}
	f.Flush()

	for _, t := range r.Tokens {
		until := ""
		switch {
		case t.State == operator.TokenExpired:
			until = ", expired at " + formatTime(t.ExpiresAt)
		case t.ExpiresAt != nil:
			until = ", until " + formatTime(t.ExpiresAt)
		}
		if t.Transferred {
			until += "; stored before the agent was given to another owner: `worker token remove` unless it still fits"
		}
		fmt.Fprintf(a.out, "token stored for %s, sent as %s%s\n", t.Destination(), t.Sent(), until)
	}
}

// describeCalls summarizes calls on one line: "40 calls since 2026-11-23T11:00:00Z, 3 failed (2 timeout, 1
// server_error), p50 12.0 ms, p95 480.0 ms".
func describeCalls(s records.CallSummary) string {
	words := fmt.Sprintf("%d calls since %s, %d failed", s.Calls, formatTime(&s.Since), s.Failed)
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(s.Failures)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", s.Failures[why], why))
	}
	if len(reasons) > 0 {
		words += " (" + strings.Join(reasons, ", ") + ")"
	}
	if s.P50Ms != nil && s.P95Ms != nil {
		words += fmt.Sprintf(", p50 %s, p95 %s", formatMillis(*s.P50Ms), formatMillis(*s.P95Ms))
	}
	return words
}

// describeServer returns the name and version of an agent's server: "example-agent 1.0.0". It returns an unknown form
// unchanged.
func describeServer(raw json.RawMessage) string {
	var s struct{ Name, Version string }
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return shortenJSON(raw)
	}
	return strings.TrimSpace(s.Name + " " + s.Version)
}

// describeTools lists tools on one line: "2: agent.receiveFeedback, other (without a schema)".
func describeTools(raw json.RawMessage) string {
	const most = 10
	var tools []store.KnownTool
	switch err := json.Unmarshal(raw, &tools); {
	case len(raw) == 0 || err != nil:
		return shortenJSON(raw)
	case len(tools) == 0:
		return "none"
	}
	var names []string
	for _, t := range tools[:min(len(tools), most)] {
		name := text.Shorten(t.Name)
		if !t.Schema {
			name += " (without a schema)"
		}
		names = append(names, name)
	}
	words := fmt.Sprintf("%d: %s", len(tools), strings.Join(names, ", "))
	if n := len(tools) - most; n > 0 {
		words += fmt.Sprintf(" and %d more", n)
	}
	return words
}

// countTools returns the number of tools in a list, or "-" for an unknown list.
func countTools(raw json.RawMessage) string {
	var tools []store.KnownTool
	if len(raw) == 0 || json.Unmarshal(raw, &tools) != nil {
		return "-"
	}
	return fmt.Sprint(len(tools))
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
		fmt.Fprintf(a.out, "%s is enabled; %d held deliveries were released (audit %d)\n", change.Name,
			change.Released, change.Audit)
	})
}

type agentDisableCmd struct{ agentChange }

func (c *agentDisableCmd) Run(a *command) error {
	change, err := a.newOperator().EnableAgent(a.ctx, c.AgentRef, c.actorName(), false)
	return c.printAnswer(a, change, err, func() {
		warnUnseen(a, change, "it is disabled")
		fmt.Fprintf(a.out, "%s is disabled: its deliveries are held, a call that runs now is finished; "+
			"`worker agent enable` releases them (audit %d)\n", change.Name, change.Audit)
	})
}

type agentPolicyCmd struct {
	agentChange
	Settings []string `arg:"" optional:"" help:"onUnknown=resend: a call with an unknown outcome is made again (default); onUnknown=hold: it is held until an operator replays it. order=strict: each client's deliveries keep their order (default); order=off: each goes as soon as it can. Other settings of a policy likewise, as in maxPerSecond=5."`
	File     string   `help:"Replace the operator's policy of the agent by the one in this file." placeholder:"FILE" xor:"change"`
	Remove   bool     `help:"Remove the operator's policy of the agent." xor:"change"`
	Own      bool     `help:"Replace or remove the agent's own policy instead, which only reduces what it gets."`
}

func (c *agentPolicyCmd) Run(a *command) error {
	level := policy.Operator
	if c.Own {
		level = policy.Own
	}
	replaces := c.File != "" || c.Remove
	if c.Own && !replaces || replaces && len(c.Settings) > 0 {
		return operator.NewMisuse("set either settings, or --file FILE, or --remove; --own is for the latter two")
	}
	var change operator.AgentChange
	var document []byte
	var err error
	if c.File != "" {
		if document, err = os.ReadFile(c.File); err != nil {
			return operator.NewMisuse("the policy cannot be read: %v", err)
		}
	}
	switch o := a.newOperator(); {
	case replaces:
		change, err = o.ReplacePolicy(a.ctx, c.AgentRef, c.actorName(), level, c.File+": ", document)
	case len(c.Settings) > 0:
		change, err = o.SetPolicy(a.ctx, c.AgentRef, c.actorName(), c.Settings)
	default:
		change, err = o.ShowPolicy(a.ctx, c.AgentRef)
	}
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
