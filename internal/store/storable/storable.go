// Package storable makes what strangers wrote into text and jsonb that Postgres takes, and that is bounded: no byte of
// theirs can make a write fail.
package storable

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDepth    = 64   // deeper JSON is kept as text
	maxExponent = 300  // jsonb numbers are numeric, written out in full: one beyond these two
	maxDigits   = 1000 // is kept as text
)

// truncatedJSON is how JSON that cannot be stored as it is looks: its beginning as text, and why.
type truncatedJSON struct {
	Truncated bool   `json:"truncated"`
	Bytes     int    `json:"bytes"`
	Text      string `json:"text"`
}

// truncationOverhead is what a cut takes without its text.
const truncationOverhead = 64

// JSON returns raw as JSON that Postgres takes as jsonb and that is not longer than limit (bytes, at least 64): NUL
// and invalid UTF-8 become U+FFFD; what is too long, too deep, no JSON or holds a number that is too long is kept as
// {"truncated": true, "bytes": <length>, "text": <beginning>}. Nothing stays nothing.
func JSON(raw json.RawMessage, limit int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) <= limit {
		if clean, ok := Repair(raw); ok && len(clean) <= limit {
			return clean
		}
	}
	// Escapes can make text six times longer; halving ends quickly.
	for room := limit - truncationOverhead; ; room /= 2 {
		room = max(room, 0)
		out, err := json.Marshal(truncatedJSON{Truncated: true, Bytes: len(raw),
			Text: Text(string(raw[:min(len(raw), room)]), room)})
		if err == nil && (len(out) <= limit || room == 0) {
			return out
		}
	}
}

// Repair returns raw as it is when Postgres can store it, or with its strings repaired; false when it is not
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

// repairStrings takes the NULs out of all strings; the decoder has replaced lone surrogates.
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

// surveyJSON walks over what may be JSON. It fits when its depth and its numbers do; it is suspicious when there is a
// NUL in it, or an escape that may stand for one or for a surrogate: jsonb takes neither.
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

// isBadEscape: u0000, or ud800 to udfff.
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
		return true // or no JSON, as will be found
	}
	e, err := strconv.Atoi(exponent)
	return err == nil && e <= maxExponent && e >= -maxExponent
}

// Text makes s a Postgres text of at most limit bytes (at least 3): no NUL, valid UTF-8, cut between characters.
func Text(s string, limit int) string {
	long := len(s) > 4*limit // far too long: the rest is not even looked at
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
