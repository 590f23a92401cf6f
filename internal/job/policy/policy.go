// Package policy decides which events an agent receives, and contains the settings with which Herald calls it.
//
// A Policy is a JSON document (docs/operator/filters.md). Parse parses it; Policy.String returns its canonical form.
// Levels holds the three policies that apply to one agent: Decide applies their filters to an Event, and Settings
// combines their other fields.
//
// Invariants: Parse refuses unknown members and values with their path. The agent's own policy only reduces the agent's
// deliveries. Values are compared exactly, and tags as the agent gets them. A Policy is not modified after Parse, so
// that goroutines may share it.
package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/job"
)

// Policy is the policy of one level. A zero field is not set.
type Policy struct {
	Enabled      *bool     `json:"enabled,omitempty"`      // false: the agent's deliveries are held
	OnUnknown    string    `json:"onUnknown,omitempty"`    // OnUnknownResend or OnUnknownHold
	Order        string    `json:"order,omitempty"`        // OrderStrict or OrderOff
	MaxPerSecond float64   `json:"maxPerSecond,omitempty"` // calls to the agent per second
	BatchSize    int       `json:"batchSize,omitempty"`    // deliveries in one call
	PauseUntil   time.Time `json:"pauseUntil,omitzero"`    // the agent is not called before
	Filters      []Rule    `json:"filters,omitempty"`      // the first that matches decides; none: deliver
}

// The values of Policy.Order. docs/design/delivery.md describes the order.
const (
	OrderStrict = "strict"
	OrderOff    = "off"
)

// The values of Policy.OnUnknown: what happens if it is unknown whether the agent accepted a call.
const (
	OnUnknownResend = "resend" // send it again with the same deliveryId
	OnUnknownHold   = "hold"   // hold it (held_unknown) until an operator replays or cancels it
)

// String returns the canonical form of the policy. Parse accepts it and returns an equal policy.
func (p Policy) String() string {
	b, _ := json.Marshal(p) // a Policy always encodes
	return string(b)
}

// Disables reports whether the policy holds the agent's deliveries.
func (p Policy) Disables() bool { return p.Enabled != nil && !*p.Enabled }

// Rule is one filter. An event matches if it matches all conditions of the rule.
type Rule struct {
	Skip       bool        // false: deliver
	text       string      // compact JSON with sorted members
	conditions []condition // the members of "when"
	// followUps: the rule has a kind and no condition on tags, value or file. Only such a rule also applies to
	// revocations and responses, which have no tags: otherwise a rule that delivers only some tags would hide the
	// revocation of a feedback that it delivered. Without a rule, revocations and responses of a skipped feedback end
	// as never_delivered.
	followUps bool
}

// condition is a member of "when". An event matches if it matches an alternative.
type condition struct {
	name         string
	alternatives []func(*Event) bool
}

// MarshalJSON implements json.Marshaler.
func (r Rule) MarshalJSON() ([]byte, error) { return []byte(r.text), nil }

// String returns the rule as compact JSON.
func (r Rule) String() string { return r.text }

func (r *Rule) matchesEvent(e *Event) bool {
	anyEvent := e.Kind == ""
	if !r.followUps && e.Kind != job.KindNewFeedback && e.Kind != job.KindValidationResponse && !anyEvent {
		return false
	}
	for _, c := range r.conditions {
		if anyEvent && c.name != "chain" && c.name != "agent" {
			if r.Skip {
				return false // it does not skip all events
			}
			continue // it may deliver one
		}
		if !slices.ContainsFunc(c.alternatives, func(match func(*Event) bool) bool { return match(e) }) {
			return false
		}
	}
	return true
}

// Event contains the fields of an event that rules can match.
type Event struct {
	Kind       job.Kind // "": any event of the agent. A filter skips it if it skips all
	Chain      uint64
	Agent      string         // decimal id
	Tag1, Tag2 string         // as the agent gets them (cleanTag)
	Client     common.Address // the author of the feedback or of the validation
	Value      *big.Int       // the rating is Value / 10^Decimals; nil: the kind has none
	Decimals   uint8
	HasFile    bool // the event has a URI; whether the file exists is unknown before the fetch
}

// EventOf returns the event of a job. The job must have passed the event check, because a forged job could otherwise
// end the delivery of a genuine event.
func EventOf(j job.Job) Event {
	e := Event{Kind: j.Kind, Chain: j.ChainID, Agent: j.AgentID.String(), Client: j.ClientAddress}
	switch j.Kind {
	case job.KindNewFeedback:
		e.Tag1, e.Tag2, e.HasFile = cleanTag(j.Tag1), cleanTag(j.Tag2), j.FeedbackURI != ""
		e.Value, e.Decimals = j.Value, j.ValueDecimals
	case job.KindValidationResponse:
		e.Client, e.Tag1, e.HasFile = j.ValidatorAddress, cleanTag(j.Tag), j.ResponseURI != ""
		e.Value = big.NewInt(int64(j.Response))
	}
	return e
}

// cleanTag returns a tag without misleading characters. The agent's arguments lack them too: with them, a client could
// otherwise evade a rule about a tag, and the agent would get exactly this tag.
func cleanTag(tag string) string { return text.Sanitize(tag) }

// Level is the origin of a policy.
type Level string

// The levels of the policies that apply to an agent.
const (
	Default  Level = "default"  // the operator's, for all agents (HERALD_POLICY_FILE)
	Operator Level = "operator" // the operator's, for this agent
	Own      Level = "agent"    // the agent's own
)

// Levels are the policies that apply to one agent. The zero Policy permits everything.
type Levels struct{ Default, Operator, Own Policy }

// Decision is the result of Decide.
type Decision struct {
	Skip  bool
	Level Level // of the rule that decided
	Rule  int   // its number among the filters of its level, from 1; 0: no rule matched, and the event is delivered
}

// Decide applies the filters to an event: the operator's for this agent, then the default. The agent's own filters can
// skip an event that the operator delivers.
func (l Levels) Decide(e Event) Decision {
	d := l.Operator.decideEvent(Operator, &e)
	if d.Rule == 0 {
		d = l.Default.decideEvent(Default, &e)
	}
	if own := l.Own.decideEvent(Own, &e); own.Skip && !d.Skip {
		return own
	}
	return d
}

func (p *Policy) decideEvent(level Level, e *Event) Decision {
	i := slices.IndexFunc(p.Filters, func(r Rule) bool { return r.matchesEvent(e) })
	if i < 0 {
		return Decision{}
	}
	return Decision{Skip: p.Filters[i].Skip, Level: level, Rule: i + 1}
}

// maxRuleText bounds the text of a rule in a sentence, in characters.
const maxRuleText = 300

// SkipJob applies the filters to the event of a job (EventOf). why is a sentence about the rule that skips the event;
// "": the event is delivered. Retractions always are, because they correct a call that Herald made.
func (l Levels) SkipJob(j job.Job) (d Decision, why string) {
	if len(l.Default.Filters)+len(l.Operator.Filters)+len(l.Own.Filters) == 0 || j.IsRetraction() {
		return d, ""
	}
	if d = l.Decide(EventOf(j)); !d.Skip {
		return d, ""
	}
	return d, l.DescribeRule(d)
}

// DescribeRule returns the sentence about the rule of a decision that skips an event. It is the error of the delivery.
func (l Levels) DescribeRule(d Decision) string {
	name, p := "the default policy", l.Default
	switch d.Level {
	case Operator:
		name, p = "the operator's policy of the agent", l.Operator
	case Own:
		name, p = "the agent's own policy", l.Own
	}
	return fmt.Sprintf("rule %d of %s skips the event: %s", d.Rule, name,
		text.Excerpt(p.Filters[d.Rule-1].text, maxRuleText))
}

// Override returns p with the fields that are set in o, and with the filters of o before those of p.
func (p Policy) Override(o Policy) Policy {
	return Policy{Enabled: cmp.Or(o.Enabled, p.Enabled), OnUnknown: cmp.Or(o.OnUnknown, p.OnUnknown),
		Order: cmp.Or(o.Order, p.Order), MaxPerSecond: cmp.Or(o.MaxPerSecond, p.MaxPerSecond),
		BatchSize: cmp.Or(o.BatchSize, p.BatchSize), PauseUntil: cmp.Or(o.PauseUntil, p.PauseUntil),
		Filters: slices.Concat(o.Filters, p.Filters)}
}

// Settings returns the settings in force, without filters. The agent's own policy can disable the agent, lower its rate
// and its batch size, and extend its pause.
func (l Levels) Settings() Policy {
	l.Default.Filters, l.Operator.Filters = nil, nil
	p := l.Default.Override(l.Operator)
	if l.Own.Disables() {
		p.Enabled = l.Own.Enabled
	}
	p.MaxPerSecond = lower(p.MaxPerSecond, l.Own.MaxPerSecond)
	p.BatchSize = lower(p.BatchSize, l.Own.BatchSize)
	if l.Own.PauseUntil.After(p.PauseUntil) {
		p.PauseUntil = l.Own.PauseUntil
	}
	return p
}

// lower returns the lower of two limits. 0 means no limit.
func lower[T int | float64](a, b T) T {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}
