package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/store"
)

// selection chooses deliveries.
type selection struct {
	Agent  string `help:"Only this agent's." placeholder:"CHAIN:AGENT"`
	Status string `help:"Only in this status." placeholder:"STATUS" enum:",queued,running,waiting,held,delivered,skipped,rejected,dead,cancelled" default:""`
	Reason string `help:"Only with this reason."`
	Kind   string `help:"Only of this kind." placeholder:"KIND" enum:",NewFeedback,FeedbackRevoked,ResponseAppended,ValidationResponse" default:""`
	Since  string `help:"Only accepted since then: RFC 3339, or how long ago, as in 24h." placeholder:"TIME"`
	Until  string `help:"Only accepted before then, likewise." placeholder:"TIME"`
}

// narrows tells whether anything is chosen at all.
func (s selection) narrows() bool { return s != selection{} }

// filter is the selection as the store takes it; times back count from now.
func (s selection) filter(now time.Time) (store.Filter, error) {
	f := store.Filter{Status: store.Status(s.Status), Reason: s.Reason, Kind: s.Kind}
	if s.Agent != "" {
		chainID, agentID, err := parseAgent(s.Agent)
		if err != nil {
			return f, err
		}
		f.ChainID, f.AgentID = &chainID, agentID
	}
	var err error
	if f.Since, err = parseMoment("--since", s.Since, now); err != nil {
		return f, err
	}
	if f.Until, err = parseMoment("--until", s.Until, now); err != nil {
		return f, err
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, &misuseError{fmt.Sprintf("--since %s is not before --until %s: nothing lies between", s.Since, s.Until)}
	}
	return f, nil
}

// parseMoment reads RFC 3339, or a duration back from now; empty is the zero time.
func parseMoment(option, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, &misuseError{fmt.Sprintf("%s %q is neither a time, as in 2026-01-31T12:00:00Z, nor how long ago, as in 24h or 90m", option, s)}
}

// recorded is a filter as the audit keeps it: with the times that were meant, not with how long ago they were.
func recorded(f store.Filter) map[string]any {
	m := map[string]any{}
	if f.ChainID != nil {
		m["agent"] = fmt.Sprintf("%d:%s", *f.ChainID, f.AgentID)
	}
	for name, v := range map[string]string{"status": string(f.Status), "reason": f.Reason, "kind": f.Kind} {
		if v != "" {
			m[name] = v
		}
	}
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !t.IsZero() {
			m[name] = t.UTC().Format(time.RFC3339)
		}
	}
	return m
}

// asJSON encodes what always can be: maps of strings, numbers and the like.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
