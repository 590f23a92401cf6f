// Package storable converts text and JSON from outside into a bounded form that Postgres can store as text and jsonb,
// so that no input can make a write fail.
package storable

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDepth    = 64   // deeper JSON is stored as text
	maxExponent = 300  // jsonb writes numbers out in full: JSON with a number beyond
	maxDigits   = 1000 // these two limits is stored as text
)

// truncatedJSON replaces JSON that cannot be stored as it is. Text is the beginning of the original.
type truncatedJSON struct {
	Truncated bool   `json:"truncated"`
	Bytes     int    `json:"bytes"`
	Text      string `json:"text"`
}

// truncationOverhead is the length of a truncatedJSON without its text.
const truncationOverhead = 64

// JSON returns raw in a form that Postgres can store as jsonb and that is not longer than limit (bytes, at least 64).
// NUL and invalid UTF-8 become U+FFFD. Input that is too long, nested too deeply, not JSON, or has a too long number
// becomes {"truncated": true, "bytes": <length>, "text": <beginning>}. Empty input returns nil.
func JSON(raw json.RawMessage, limit int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) <= limit {
		if clean, ok := Repair(raw); ok && len(clean) <= limit {
			return clean
		}
	}
	// Escapes can make the text six times longer, so a few halvings are enough.
	for room := limit - truncationOverhead; ; room /= 2 {
		room = max(room, 0)
		out, err := json.Marshal(truncatedJSON{Truncated: true, Bytes: len(raw),
			Text: Text(string(raw[:min(len(raw), room)]), room)})
		if err == nil && (len(out) <= limit || room == 0) {
			return out
		}
	}
}

// Repair returns raw unchanged if Postgres can store it, or with its strings repaired. It returns false if raw is not
// storable JSON.
func Repair(raw []byte) (json.RawMessage, bool) {
	suspicious, fits := surveyJSON(raw)
	if !fits {
		return nil, false
	}
	if !suspicious && utf8.Valid(raw) {
		return raw, json.Valid(raw)
	}
	raw = bytes.ToValidUTF8(bytes.ReplaceAll(raw, []byte{0}, []byte("\uFFFD")), []byte("\uFFFD"))
	if !json.Valid(raw) {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil, false
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(repairStrings(v)) != nil {
		return nil, false
	}
	return bytes.TrimSpace(out.Bytes()), true
}

// repairStrings replaces NUL in all strings. The decoder has already replaced lone surrogates.
func repairStrings(v any) any {
	switch v := v.(type) {
	case string:
		return replaceNUL(v)
	case []any:
		for i := range v {
			v[i] = repairStrings(v[i])
		}
	case map[string]any:
		repaired := make(map[string]any, len(v))
		for k, e := range v {
			repaired[replaceNUL(k)] = repairStrings(e)
		}
		return repaired
	}
	return v
}

func replaceNUL(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// surveyJSON scans raw, which may be invalid JSON. fits reports whether its depth and numbers are within the limits.
// suspicious reports whether it contains a NUL, or an escape for a NUL or a surrogate: jsonb cannot store these.
func surveyJSON(raw []byte) (suspicious, fits bool) {
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == 0:
			suspicious = true
		case inString && c == '\\':
			suspicious = suspicious || isBadEscape(raw[i+1:])
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false, false
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			n := numberLength(raw[i:])
			if !numberFits(raw[i : i+n]) {
				return false, false
			}
			i += n - 1
		}
	}
	return suspicious, true
}

// isBadEscape reports whether rest begins with u0000, or with one of ud800 to udfff.
func isBadEscape(rest []byte) bool {
	if len(rest) < 5 || rest[0] != 'u' {
		return false
	}
	hex := strings.ToLower(string(rest[1:5]))
	return hex == "0000" || hex[0] == 'd' && hex[1] >= '8'
}

func numberLength(raw []byte) int {
	n := bytes.IndexFunc(raw, func(r rune) bool { return !strings.ContainsRune("+-.eE0123456789", r) })
	if n < 0 {
		return len(raw)
	}
	return n
}

func numberFits(n []byte) bool {
	digits, exponent := n, ""
	if i := bytes.IndexAny(n, "eE"); i >= 0 {
		digits, exponent = n[:i], strings.TrimPrefix(string(n[i+1:]), "+")
	}
	if len(digits) > maxDigits {
		return false
	}
	if exponent == "" {
		return true // or not JSON, which json.Valid detects later
	}
	e, err := strconv.Atoi(exponent)
	return err == nil && e <= maxExponent && e >= -maxExponent
}

// Text returns s as a Postgres text of at most limit bytes (at least 3): without NUL, in valid UTF-8, cut between
// characters.
func Text(s string, limit int) string {
	long := len(s) > 4*limit // do not scan the rest
	if long {
		s = s[:4*limit]
	}
	s = strings.ToValidUTF8(replaceNUL(s), "\uFFFD")
	if len(s) <= limit && !long {
		return s
	}
	end := min(max(limit-len("…"), 0), len(s))
	for end > 0 && end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
