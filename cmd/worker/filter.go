package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
)

// selection chooses deliveries.
type selection struct {
	Agent  string `help:"Only this agent's." placeholder:"CHAIN:AGENT"`
	Status string `help:"Only in this status: queued, running, waiting, held, delivered, skipped, rejected, dead or cancelled." placeholder:"STATUS"`
	Reason string `help:"Only with this reason." placeholder:"REASON"`
	Kind   string `help:"Only of this kind: NewFeedback, FeedbackRevoked, ResponseAppended or ValidationResponse." placeholder:"KIND"`
	Since  string `help:"Only accepted since then: RFC 3339, or how long ago, as in 24h." placeholder:"TIME"`
	Until  string `help:"Only accepted before then, likewise." placeholder:"TIME"`
}

// narrows tells whether anything is chosen at all.
func (s selection) narrows() bool { return s != selection{} }

// filter is the selection as the store takes it; times back count from now.
func (s selection) filter(now time.Time) (store.Filter, error) {
	f := store.Filter{Status: store.Status(s.Status), Reason: s.Reason, Kind: s.Kind}
	err := cmp.Or(checkWord("status", s.Status, statuses()), checkWord("reason", s.Reason, retry.Reasons()), checkWord("kind", s.Kind, kinds()))
	if err != nil {
		return f, err
	}
	if s.Agent != "" {
		chainID, agentID, err := parseAgent(s.Agent)
		if err != nil {
			return f, err
		}
		f.ChainID, f.AgentID = &chainID, agentID
	}
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

// statuses are those that a delivery can be in.
func statuses() []store.Status {
	return []store.Status{store.Queued, store.Running, store.Waiting, store.Held, store.Delivered, store.Skipped, store.Rejected, store.Dead,
		store.Cancelled}
}

// kinds are those of jobs that become deliveries.
func kinds() []job.Kind {
	return []job.Kind{job.KindNewFeedback, job.KindFeedbackRevoked, job.KindResponseAppended, job.KindValidationResponse}
}

// checkWord refuses a word of a closed list that is not in it; an empty one was not given.
func checkWord[T ~string](what, word string, known []T) error {
	if word == "" || slices.Contains(known, T(word)) {
		return nil
	}
	list := make([]string, len(known))
	for i, k := range known {
		list[i] = string(k)
	}
	return &misuseError{fmt.Sprintf("unknown %s %q; one of %s", what, word, strings.Join(list, ", "))}
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
