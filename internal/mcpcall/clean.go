package mcpcall

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Clean returns args without the characters that make text read differently from what it is (DESIGN §9): control characters but
// tab and line feed, and the bidirectional embeddings, overrides and isolates. It looks into every string, also the names and
// values of raw JSON, whose other bytes stay as they are. The second result tells whether anything was removed; if not, args
// itself is returned. args is never changed.
func Clean(args map[string]any) (map[string]any, bool) {
	out, changed := cleanValue(args)
	if !changed {
		return args, false
	}
	return out.(map[string]any), true
}

func cleanValue(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		s := cleanString(v)
		return s, s != v
	case json.RawMessage:
		return cleanRaw(v)
	case map[string]any:
		out, changed := make(map[string]any, len(v)), false
		for name, value := range v {
			clean, c := cleanValue(value)
			key := cleanString(name)
			changed = changed || c || key != name
			out[key] = clean
		}
		return out, changed
	case []any:
		out, changed := make([]any, len(v)), false
		for i, value := range v {
			var c bool
			out[i], c = cleanValue(value)
			changed = changed || c
		}
		return out, changed
	}
	return v, false
}

func cleanString(s string) string {
	if strings.IndexFunc(s, unwanted) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unwanted(r) {
			return -1
		}
		return r
	}, s)
}

// unwanted: Unicode Cc but tab and line feed, and LRE RLE PDF LRO RLO, LRI RLI FSI PDI. The marks (LRM, RLM, ALM) stay: ordinary
// Arabic and Hebrew text needs them and they override nothing.
func unwanted(r rune) bool {
	switch {
	case r == '\t' || r == '\n':
		return false
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	}
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// cleanRaw rewrites only the string tokens that hold something unwanted, so that numbers, order and spacing stay the author's.
func cleanRaw(raw json.RawMessage) (json.RawMessage, bool) {
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
		if suspicious(token) && json.Unmarshal(token, &s) == nil {
			if clean := cleanString(s); clean != s {
				quoted, err := json.Marshal(clean)
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

// suspicious: only an escape, DEL, C1 (0xc2 …) or U+20xx (0xe2 …) can hide something unwanted; raw control bytes are no JSON.
func suspicious(token []byte) bool {
	return bytes.IndexByte(token, '\\') >= 0 || bytes.IndexByte(token, 0x7f) >= 0 ||
		bytes.IndexByte(token, 0xc2) >= 0 || bytes.IndexByte(token, 0xe2) >= 0
}
