package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Agent describes an agent: its endpoint, state, totals and last error.
func Agent(r operator.Agent) (f Facts) {
	f.addFact("agent", erc8004.FormatAgent(r.ChainID, r.AgentID))
	f.addFact("registry", r.IdentityRegistry)
	state := r.State
	if !r.Enabled && state != "disabled" {
		state += ", disabled"
	}
	f.addFact("state", state)
	f.addFact("next step", r.NextStep)
	if p := r.Policy.String(); p != "{}" { // `worker agent policy` shows the settings in force
		f.addFact("operator's policy", text.Shorten(p))
	}
	f.addFact("endpoint", r.Endpoint)
	if r.Effort != nil {
		f.addFact("effort", r.Effort.String())
	}
	f.addFact("server", Server(r.ServerInfo))
	f.addFact("protocol", r.Protocol)
	f.addFact("tools", Tools(r.Tools))
	f.addFact("epoch", fmt.Sprint(r.Epoch))
	var open []string
	for _, s := range []outcome.Status{outcome.Queued, outcome.Running, outcome.Waiting, outcome.Held} {
		open = append(open, fmt.Sprintf("%d %s", r.Open[s], s))
	}
	f.addFact("open", strings.Join(open, ", "))
	f.addFact("ended", shortenJSON(r.Totals))
	f.addFact("last call", Time(r.LastCalledAt))
	f.addFact("last success", Time(r.LastOKAt))
	f.addTime("failing since", r.FailingSince)
	f.addFact("last hour", describeCalls(r.LastHour))
	f.addFact("last day", describeCalls(r.LastDay))
	if r.LastError != "" {
		f.addFact("last error", Time(r.LastErrorAt)+"  "+r.LastError)
	}
	f.addFact("known since", Time(&r.CreatedAt))
	for _, t := range r.Transfers {
		f.addFact("transferred",
			fmt.Sprintf("%s  to %s, from %s, in block %d", Time(&t.At), t.To, t.From, t.BlockNumber))
	}
	return f
}

// Tokens describes each token that is stored for an agent.
func Tokens(list []operator.Token) (lines []string) {
	for _, t := range list {
		until := ""
		switch {
		case t.State == operator.TokenExpired:
			until = ", expired at " + Time(t.ExpiresAt)
		case t.ExpiresAt != nil:
			until = ", until " + Time(t.ExpiresAt)
		}
		if t.Transferred {
			until += "; stored before the agent was given to another owner: `worker token remove` unless it still fits"
		}
		lines = append(lines, fmt.Sprintf("token stored for %s, sent as %s%s", t.Destination(), t.Sent(), until))
	}
	return lines
}

// describeCalls summarizes calls on one line: "40 calls since 2026-11-23T11:00:00Z, 3 failed (2 timeout, 1
// server_error), p50 12.0 ms, p95 480.0 ms".
func describeCalls(s records.CallSummary) string {
	words := fmt.Sprintf("%s since %s, %d failed", text.Count(s.Calls, "call", "calls"), Time(&s.Since), s.Failed)
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(s.Failures)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", s.Failures[why], why))
	}
	if len(reasons) > 0 {
		words += " (" + strings.Join(reasons, ", ") + ")"
	}
	if s.P50Ms != nil && s.P95Ms != nil {
		words += fmt.Sprintf(", p50 %s, p95 %s", Millis(*s.P50Ms), Millis(*s.P95Ms))
	}
	return words
}

// Server returns the name and version of an agent's server: "example-agent 1.0.0". It returns an unknown form
// unchanged.
func Server(raw json.RawMessage) string {
	var s struct{ Name, Version string }
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return shortenJSON(raw)
	}
	return strings.TrimSpace(s.Name + " " + s.Version)
}

// Tools lists tools on one line: "2: agent.receiveFeedback, other (without a schema)".
func Tools(raw json.RawMessage) string {
	var tools []ledger.KnownTool
	switch err := json.Unmarshal(raw, &tools); {
	case len(raw) == 0 || err != nil:
		return shortenJSON(raw)
	case len(tools) == 0:
		return "none"
	}
	var names []string
	for _, t := range tools {
		name := text.Shorten(t.Name)
		if !t.Schema {
			name += " (without a schema)"
		}
		names = append(names, name)
	}
	return fmt.Sprintf("%d: %s", len(tools), text.JoinFirst(names, 10, ", "))
}

// CountTools returns the number of tools in a list, or "-" for an unknown list.
func CountTools(raw json.RawMessage) string {
	var tools []ledger.KnownTool
	if len(raw) == 0 || json.Unmarshal(raw, &tools) != nil {
		return "-"
	}
	return fmt.Sprint(len(tools))
}
