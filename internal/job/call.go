package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/text"
)

// MaxCallBytes is the largest body of a direct call (ParseDirectCall), in bytes. It exceeds MaxBytes because the
// arguments of a call may contain a whole feedback file, while a job contains only the file's URI.
const MaxCallBytes = 4 << 20

// DirectCall is a tool call that POST /mcp/call executes immediately, without a delivery
// (docs/reference/old-interfaces.md). The request has the form of the old backend's HTTP bridge:
//
//	{"endpoint": …, "tool_name": "agent.receiveFeedback", "arguments": {…}, "timeout_ms": 30000}
//
// A direct call belongs to no event. It has no key and is not stored, and its arguments must not contain a deliveryId.
type DirectCall struct {
	Endpoint  Endpoint
	Tool      string
	Arguments map[string]any
	TimeoutMs int // milliseconds; 0 if the request contains none
}

// ParseDirectCall parses the body of a direct call. It ignores unknown fields, because the HTTP bridge of the old
// backend ignored them. The error is a *Refusal that names the field.
func ParseDirectCall(body []byte, l Limits) (DirectCall, error) {
	if len(body) > MaxCallBytes {
		return DirectCall{}, refuse("", "is %d bytes long; a call may have %d", len(body), MaxCallBytes)
	}
	if !decode.Modest(body) {
		return DirectCall{}, refuse("", "has more than %d values, or nests deeper than %d", decode.MaxTokens, maxDepth)
	}
	root, _, refusal := readJSON(body)
	if refusal != nil {
		return DirectCall{}, refusal
	}
	o, ok := root.Object()
	if !ok {
		return DirectCall{}, refuse("", "is not a JSON object")
	}
	r := &fieldReader{object: o, limits: l.withDefaults()}
	r.require("endpoint", "tool_name")
	if r.missing != nil {
		return DirectCall{}, r.missing
	}
	c := DirectCall{Endpoint: *r.readOldEndpoint("endpoint"), Tool: r.readTool("tool_name"),
		Arguments: map[string]any{}}
	if v, _ := r.readObject("arguments"); v != nil {
		c.Arguments, _ = v.Plain().(map[string]any)
	}
	if path, found := findDeliveryID(c.Arguments); found {
		return DirectCall{}, refuse("arguments"+path, "is not for a direct call to name: it is the id of a delivery")
	}
	// The old backend's HTTP bridge accepted any timeout, so a longer one than Herald allows is shortened, not refused.
	if r.has("timeout_ms") {
		most := uint64(r.limits.MaxTimeout.Milliseconds())
		c.TimeoutMs = int(min(r.readUint("timeout_ms", 1, 1<<64-1), most))
	}
	if r.err != nil {
		return DirectCall{}, r.err
	}
	return c, nil
}

// findDeliveryID searches value, and the objects and lists in it, for a member whose name isDeliveryID accepts. It
// returns the member's path relative to value, such as ".a[0].deliveryId". It builds the path only after it found a
// member, because it would otherwise copy a long name for each value below that name.
func findDeliveryID(value any) (path string, found bool) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if isDeliveryID(name) {
				return "." + name, true
			}
			if rest, found := findDeliveryID(v[name]); found {
				return "." + text.Excerpt(name, maxToolName) + rest, true
			}
		}
	case []any:
		for i, element := range v {
			if rest, found := findDeliveryID(element); found {
				return fmt.Sprintf("[%d]%s", i, rest), true
			}
		}
	}
	return "", false
}

// isDeliveryID reports whether name is deliveryId or retracts, in any case, with or without _ and -, and with or
// without characters that are removed before the call (text.Sanitize). Agents read a delivery's id from these
// arguments.
func isDeliveryID(name string) bool {
	const longest = len("delivery_id") + 4
	if name = text.Sanitize(name); len(name) > longest {
		return false
	}
	plain := strings.NewReplacer("_", "", "-", "").Replace(name)
	return strings.EqualFold(plain, "deliveryId") || strings.EqualFold(plain, "retracts") // as encoding/json compares
}
