package store

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what is kept (DESIGN §4: attempts are bounded to 16 KiB each side).
const (
	maxSideBytes  = 16 << 10
	maxErrorBytes = 4 << 10
	maxURLBytes   = 2 << 10
	maxNameBytes  = 256
	maxDepth      = 64  // deeper JSON is kept as text
	maxExponent   = 300 // jsonb numbers are numeric: an exponent beyond it is kept as text
)

// cut is how JSON that cannot be stored as it is looks: its beginning as text, and why.
type cut struct {
	Truncated bool   `json:"truncated"`
	Bytes     int    `json:"bytes"`
	Text      string `json:"text"`
}

// Storable returns raw as JSON that Postgres takes as jsonb and that is not longer than limit: NUL and invalid UTF-8 become
// U+FFFD; what is too long, too deep, no JSON or holds a number beyond numeric is kept as
// {"truncated": true, "bytes": <length>, "text": <beginning>}. Nil stays nil.
func Storable(raw json.RawMessage, limit int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) <= limit {
		if clean, ok := cleanJSON(raw); ok && len(clean) <= limit {
			return clean
		}
	}
	// Escapes can make text six times longer; halving ends quickly.
	for room := limit - 64; ; room /= 2 {
		out, err := json.Marshal(cut{Truncated: true, Bytes: len(raw), Text: text(string(raw[:min(len(raw), room)]), room)})
		if err == nil && len(out) <= limit {
			return out
		}
	}
}

// cleanJSON decodes and re-encodes token by token, repairing strings; false when it is not storable JSON.
func cleanJSON(raw []byte) (json.RawMessage, bool) {
	if !bytes.ContainsRune(raw, 0) && utf8.Valid(raw) && !bytes.Contains(raw, []byte(`\u`)) && !hasHugeNumber(raw) &&
		json.Valid(raw) && depth(raw) <= maxDepth {
		return raw, true
	}
	dec := json.NewDecoder(bytes.NewReader(bytes.ReplaceAll(raw, []byte{0}, nil)))
	dec.UseNumber()
	var v any
	if depth(raw) > maxDepth || dec.Decode(&v) != nil || dec.More() {
		return nil, false
	}
	v, ok := repair(v)
	if !ok {
		return nil, false
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return nil, false
	}
	return bytes.TrimSpace(out.Bytes()), true
}

func repair(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		return text(v, len(v)*3), true
	case json.Number:
		return v, !hugeExponent(v.String())
	case []any:
		for i := range v {
			e, ok := repair(v[i])
			if !ok {
				return nil, false
			}
			v[i] = e
		}
		return v, true
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			e, ok := repair(e)
			if !ok {
				return nil, false
			}
			m[text(k, len(k)*3)] = e
		}
		return m, true
	}
	return v, true
}

// depth is how deeply raw nests, by brackets outside strings.
func depth(raw []byte) int {
	deepest, now, inString := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// hasHugeNumber errs on the safe side: an "e" with three digits behind it anywhere sends the document the slow way.
func hasHugeNumber(raw []byte) bool {
	for i := 0; i+3 < len(raw); i++ {
		if raw[i] != 'e' && raw[i] != 'E' {
			continue
		}
		j := i + 1
		if raw[j] == '+' || raw[j] == '-' {
			j++
		}
		digits := 0
		for ; j < len(raw) && raw[j] >= '0' && raw[j] <= '9'; j++ {
			digits++
		}
		if digits >= 3 {
			return true
		}
	}
	return false
}

func hugeExponent(n string) bool {
	i := strings.IndexAny(n, "eE")
	if i < 0 {
		return false
	}
	e, err := strconv.Atoi(strings.TrimPrefix(n[i+1:], "+"))
	return err != nil || e > maxExponent || e < -maxExponent
}

// text makes s a Postgres text of at most limit bytes: no NUL, valid UTF-8, cut between characters.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) <= limit {
		return s
	}
	end := max(limit-len("…"), 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
