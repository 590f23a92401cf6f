package operator

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/store"
)

// clearPreferences is a policy value that acts once: it deletes the preferences that the agent sent. The agent can send
// new ones.
const clearPreferences = "clear"

// FollowsPreferences returns the preferences policy in force.
func FollowsPreferences(p store.Policy) string { return cmp.Or(p.Preferences, store.PreferencesFollow) }

// DescribePreferences describes an agent's preferences in words. It returns "" for no preferences.
func DescribePreferences(p *store.Preferences) string {
	if p == nil {
		return ""
	}
	var words []string
	switch {
	case p.Kinds == nil:
	case len(p.Kinds) == 0:
		words = append(words, "no deliveries at all")
	default:
		words = append(words, "only "+strings.Join(p.Kinds, ", "))
	}
	if p.BatchSize > 0 {
		words = append(words, fmt.Sprintf("at most %d in a call", p.BatchSize))
	}
	if p.MaxPerSecond > 0 {
		words = append(words, fmt.Sprintf("at most %v calls a second", p.MaxPerSecond))
	}
	if !p.PauseUntil.IsZero() {
		words = append(words, "no calls until "+p.PauseUntil.UTC().Format(time.RFC3339))
	}
	if len(p.NotUnderstood) > 0 {
		words = append(words, "not understood: "+strings.Join(p.NotUnderstood, ", "))
	}
	return strings.Join(words, "; ")
}

// DescribeStanding says which of the agent's preferences are in force.
func DescribeStanding(a Agent) string {
	switch {
	case a.Preferences == nil:
		return ""
	case a.Policy.Preferences == store.PreferencesIgnore:
		return "ignored by the policy preferences=ignore"
	case a.PreferencesInForce == nil && time.Since(a.Preferences.SaidAt) > store.PreferencesLife:
		return "not in force: said more than 7 days ago"
	case a.PreferencesInForce == nil:
		return "nothing of it is in force"
	}
	return "in force: " + DescribePreferences(a.PreferencesInForce)
}

// findInForce returns the preferences of an agent that are in force at the time now, or nil.
func findInForce(row store.AgentRow, now time.Time) *store.Preferences {
	if row.Preferences == nil {
		return nil
	}
	p := row.Preferences.InForce(row.Policy, now)
	p.NotUnderstood = nil
	if p.Kinds == nil && p.BatchSize == 0 && p.MaxPerSecond == 0 && p.PauseUntil.IsZero() {
		return nil
	}
	return &p
}
