package policy

import (
	"encoding/json"
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"
)

// parsedPolicies contains the stored policies that were parsed last, because each claim reads the policies of its
// agent.
var parsedPolicies, _ = lru.New[string, Policy](1 << 10) // fails only for a size below 1

// ParseStored parses a policy that Postgres returned. It may be longer than MaxBytes: jsonb writes a space after each
// comma and colon, and single settings are added to a stored policy. If an operator or a newer version wrote unknown
// fields or values, ParseStored returns only the known settings onUnknown and order.
func ParseStored(raw []byte) Policy {
	if string(raw) == "{}" {
		return Policy{}
	}
	if p, ok := parsedPolicies.Get(string(raw)); ok {
		return p
	}
	strict := &parser{}
	p := strict.parsePolicy(raw, Operator)
	if strict.err != nil {
		p = parseSettings(raw)
	}
	parsedPolicies.Add(string(raw), p)
	return p
}

// parseSettings reads onUnknown and order, and ignores all else.
func parseSettings(raw []byte) Policy {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return Policy{}
	}
	read := func(field string, allowed ...string) (value string) {
		if json.Unmarshal(fields[field], &value) != nil || !slices.Contains(allowed, value) {
			return ""
		}
		return value
	}
	return Policy{OnUnknown: read("onUnknown", "resend", "hold"), Order: read("order", "strict", "off")}
}
