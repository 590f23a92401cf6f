package arguments

import (
	"bytes"
	"encoding/json"

	"github.com/agentherald/herald/internal/text"
)

// Sanitize returns args without the characters that make text read differently from what it is (see text.Sanitize). It
// looks into every string, also the names and values of raw JSON, whose other bytes stay as they are. The second result
// tells whether anything was removed; if not, args itself is returned. args is never changed.
func Sanitize(args map[string]any) (map[string]any, bool) {
	out, changed := sanitizeValue(args)
	if !changed {
		return args, false
	}
	return out.(map[string]any), true
}

func sanitizeValue(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		s := text.Sanitize(v)
		return s, s != v
	case json.RawMessage:
		return sanitizeRaw(v)
	case map[string]any:
		out, changed := make(map[string]any, len(v)), false
		for name, value := range v {
			sane, c := sanitizeValue(value)
			key := text.Sanitize(name)
			changed = changed || c || key != name
			out[key] = sane
		}
		return out, changed
	case []any:
		out, changed := make([]any, len(v)), false
		for i, value := range v {
			var c bool
			out[i], c = sanitizeValue(value)
			changed = changed || c
		}
		return out, changed
	}
	return v, false
}

// sanitizeRaw rewrites only the string tokens that hold something unwanted, so that numbers, order and spacing stay the
// author's.
func sanitizeRaw(raw json.RawMessage) (json.RawMessage, bool) {
	var out []byte // nil until the first change
	kept := 0      // raw[:kept] is in out
	for i := 0; i < len(raw); i++ {
		if raw[i] != '"' {
			continue
		}
		end := i + 1
		for end < len(raw) && raw[end] != '"' {
			if raw[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(raw) {
			break // not JSON; whoever parses it will say so
		}
		token := raw[i : end+1]
		var s string
		if mayMislead(token) && json.Unmarshal(token, &s) == nil {
			if sane := text.Sanitize(s); sane != s {
				quoted, err := json.Marshal(sane)
				if err == nil {
					out = append(append(out, raw[kept:i]...), quoted...)
					kept = end + 1
				}
			}
		}
		i = end
	}
	if kept == 0 {
		return raw, false
	}
	return append(out, raw[kept:]...), true
}

// mayMislead: only an escape, DEL, C1 (0xc2 …) or U+20xx (0xe2 …) can hide something unwanted; raw control bytes are no
// JSON.
func mayMislead(token []byte) bool {
	return bytes.IndexByte(token, '\\') >= 0 || bytes.IndexByte(token, 0x7f) >= 0 ||
		bytes.IndexByte(token, 0xc2) >= 0 || bytes.IndexByte(token, 0xe2) >= 0
}
