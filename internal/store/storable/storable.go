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
	maxDepth    = 64   // deepest nesting of JSON that is stored as it is
	maxExponent = 300  // largest exponent of a number: jsonb writes 1e300 out as 301 digits
	maxDigits   = 1000 // longest number without its exponent
)

// Limits of stored values, in bytes. MaxSide limits each JSON value from outside: the arguments, response and result of
// an attempt, and the agent's server information and tool list.
const (
	MaxSide  = 16 << 10
	MaxError = 4 << 10
	MaxURL   = 2 << 10
	MaxName  = 256
)

// truncatedJSON is stored in place of JSON that cannot be stored as it is. Bytes is the length of the original, and
// Text is its beginning.
type truncatedJSON struct {
	Truncated bool   `json:"truncated"`
	Bytes     int    `json:"bytes"`
	Text      string `json:"text"`
}

// truncationOverhead is the longest that a truncatedJSON with an empty text can be, in bytes of JSON.
const truncationOverhead = 64

// JSON returns raw in a form that Postgres can store as jsonb and that has at most limit bytes (limit: at least 64).
// NUL, invalid UTF-8 and lone surrogates become U+FFFD. If raw is too long, or if Repair returns false for it, the
// result is {"truncated": true, "bytes": <length>, "text": <beginning>}. If raw is empty, the result is nil.
func JSON(raw json.RawMessage, limit int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) <= limit {
		if clean, ok := Repair(raw); ok && len(clean) <= limit {
			return clean
		}
	}
	// In JSON, escapes can make the text six times longer. The loop halves the text's length (room) until the result
	// fits, which takes a few rounds.
	for room := limit - truncationOverhead; ; room /= 2 {
		room = max(room, 0)
		out, err := json.Marshal(truncatedJSON{Truncated: true, Bytes: len(raw),
			Text: Text(string(raw[:min(len(raw), room)]), room)})
		if err == nil && (len(out) <= limit || room == 0) {
			return out
		}
	}
}

// Repair returns raw as JSON that Postgres can store as jsonb, and true. It replaces NUL, invalid UTF-8 and lone
// surrogates by U+FFFD. It returns false if raw is not JSON, if it nests deeper than maxDepth, or if it has a number
// with more than maxDigits digits or an exponent above maxExponent or below -maxExponent.
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

// repairStrings replaces NUL by U+FFFD in all strings and keys of v, which is decoded JSON. The decoder has already
// replaced lone surrogates.
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

// replaceNUL replaces each NUL in s by U+FFFD.
func replaceNUL(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// surveyJSON scans raw, which may be invalid JSON. fits reports whether its depth is at most maxDepth and numberFits is
// true for all its numbers. suspicious reports whether it contains NUL, or an escape (\uXXXX) for NUL or a surrogate:
// jsonb cannot store NUL and lone surrogates. suspicious has no meaning if fits is false.
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

// isBadEscape reports whether rest, the bytes after a backslash, begins with u0000 (NUL) or with ud800 to udfff
// (surrogates).
func isBadEscape(rest []byte) bool {
	if len(rest) < 5 || rest[0] != 'u' {
		return false
	}
	hex := strings.ToLower(string(rest[1:5]))
	return hex == "0000" || hex[0] == 'd' && hex[1] >= '8'
}

// numberLength returns the length, in bytes, of the number with which raw begins.
func numberLength(raw []byte) int {
	n := bytes.IndexFunc(raw, func(r rune) bool { return !strings.ContainsRune("+-.eE0123456789", r) })
	if n < 0 {
		return len(raw)
	}
	return n
}

// numberFits reports whether n, a number in JSON, has at most maxDigits characters before its exponent, and an exponent
// from -maxExponent to maxExponent.
func numberFits(n []byte) bool {
	digits, exponent := n, ""
	if i := bytes.IndexAny(n, "eE"); i >= 0 {
		digits, exponent = n[:i], strings.TrimPrefix(string(n[i+1:]), "+")
	}
	if len(digits) > maxDigits {
		return false
	}
	if exponent == "" {
		return true // the number has no exponent, or it is not JSON, which json.Valid detects later
	}
	e, err := strconv.Atoi(exponent)
	return err == nil && e <= maxExponent && e >= -maxExponent
}

// Text returns s as text that Postgres can store: without NUL, in valid UTF-8, and of at most limit bytes (limit: at
// least 3). Longer text is cut between two characters and ends with "…".
func Text(s string, limit int) string {
	long := len(s) > 4*limit // only the first 4*limit bytes are scanned
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

// Names returns the first maxNames of list in storable form, each cut to MaxName.
func Names(list []string) []string {
	var out []string
	for _, s := range list[:min(len(list), maxNames)] {
		out = append(out, Text(s, MaxName))
	}
	return out
}

// EncodedNames returns Names(list) as JSON, or nil for none.
func EncodedNames(list []string) []byte {
	names := Names(list)
	if names == nil {
		return nil
	}
	encoded, _ := json.Marshal(names) // strings cannot fail
	return encoded
}

// Integers returns list as the text of a Postgres integer[], or nil for nil. A statement for a group gets its arrays as
// texts, because Postgres has no array of arrays with different lengths.
func Integers(list []int32) *string {
	if list == nil {
		return nil
	}
	text := make([]byte, 0, 2+8*len(list))
	text = append(text, '{')
	for i, n := range list {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(n), 10)
	}
	out := string(append(text, '}'))
	return &out
}

// maxNames limits the number of names in a list.
const maxNames = 16

// OrNull returns a pointer to s, or nil if s is empty.
func OrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Name returns s in storable form, cut to MaxName, or nil if s is empty.
func Name(s string) *string { return OrNull(Text(s, MaxName)) }
