package arguments

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/text"
)

// Sanitize returns args without the characters that make text look different from its content (see text.Sanitize). It
// processes every string, including the names and values in raw JSON, and keeps all other bytes of raw JSON. In raw
// JSON it also replaces lone surrogates by U+FFFD. The second result reports whether anything was changed; if not, the
// first result is args itself. args is never changed.
func Sanitize(args map[string]any) (map[string]any, bool) {
	out, changed := sanitizeValue(args)
	if !changed {
		return args, false
	}
	return out.(map[string]any), true
}

// sanitizeValue returns a sanitized copy of v and reports whether anything was removed.
func sanitizeValue(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		s := text.Sanitize(v)
		return s, s != v
	case json.RawMessage:
		return sanitizeRaw(v)
	case map[string]any:
		out, changed := v, false
		for name, value := range v {
			sane, c := sanitizeValue(value)
			key := text.Sanitize(name)
			if !c && key == name {
				continue
			}
			if !changed {
				out, changed = maps.Clone(v), true
			}
			delete(out, name)
			out[key] = sane
		}
		return out, changed
	case []any:
		out, changed := v, false
		for i, value := range v {
			sane, c := sanitizeValue(value)
			if c && !changed {
				out, changed = slices.Clone(v), true
			}
			if c {
				out[i] = sane
			}
		}
		return out, changed
	}
	return v, false
}

// sanitizeRaw rewrites only the string tokens that contain unwanted characters, so that numbers, order and spacing are
// preserved.
func sanitizeRaw(raw json.RawMessage) (json.RawMessage, bool) {
	var out []byte // nil until the first change
	kept := 0      // number of bytes of raw that are copied to out
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
			break // not JSON; the parser reports that later
		}
		token := raw[i : end+1]
		var s string
		if mayMislead(token) && json.Unmarshal(token, &s) == nil {
			if sane := text.Sanitize(s); sane != s || isBroken(token, s) {
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

// isBroken reports whether token, which decodes to s, may contain an escape for one half of a surrogate pair, such as
// \ud83d. Postgres and many decoders refuse such JSON. encoding/json decodes the escape to U+FFFD.
func isBroken(token []byte, s string) bool {
	escapes := bytes.ReplaceAll(token, []byte(`\\`), nil) // without escaped backslashes
	return strings.ContainsRune(s, utf8.RuneError) && bytes.Contains(bytes.ToLower(escapes), []byte(`\ud`))
}

// mayMislead reports whether a string token can contain an unwanted character. Only an escape, DEL, C1 (0xc2 …), U+20xx
// (0xe2 …) and U+E00xx (0xf3 …) can encode one; unescaped control bytes are not valid JSON.
func mayMislead(token []byte) bool {
	return bytes.IndexByte(token, '\\') >= 0 || bytes.IndexByte(token, 0x7f) >= 0 ||
		bytes.IndexByte(token, 0xc2) >= 0 || bytes.IndexByte(token, 0xe2) >= 0 || bytes.IndexByte(token, 0xf3) >= 0
}
