package oauth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/base/strictjson"
)

// object is a JSON object from an untrusted server. Its numbers are of type json.Number.
type object map[string]any

// errNotObject contains no part of the text, because the text may contain secrets.
var errNotObject = errors.New("it is not a JSON object")

// parseObject parses one JSON object. Names are case-sensitive. It rejects a duplicate name, because two parsers may
// interpret such a text differently. Its errors contain no part of the text and are clauses ("it is …").
func parseObject(raw []byte) (object, error) {
	v, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxDepth})
	switch {
	case fault == nil:
	case fault.Kind == strictjson.Duplicate:
		return nil, errors.New("it has a name twice")
	case fault.Kind == strictjson.TooDeep:
		return nil, fmt.Errorf("it nests deeper than %d levels", maxDepth)
	default:
		return nil, errNotObject
	}
	o, ok := v.Plain().(map[string]any)
	if !ok {
		return nil, errNotObject
	}
	return o, nil
}

// getText returns a string field of at most limit bytes; "" if it is absent or null. Its errors are clauses without the
// value.
func (o object) getText(name string, limit int) (string, error) {
	switch v := o[name].(type) {
	case nil:
		return "", nil
	case string:
		if len(v) > limit {
			return "", fmt.Errorf("its %s is longer than %d bytes", name, limit)
		}
		return v, nil
	}
	return "", fmt.Errorf("its %s is not text", name)
}

// getTexts returns a field that is a list of at most most strings; nil if it is absent or null.
func (o object) getTexts(name string, most, limit int) ([]string, error) {
	if o[name] == nil {
		return nil, nil
	}
	list, ok := o[name].([]any)
	if !ok {
		return nil, fmt.Errorf("its %s is not a list", name)
	}
	if len(list) > most {
		return nil, fmt.Errorf("its %s has more than %d entries", name, most)
	}
	out := make([]string, 0, len(list))
	for _, v := range list {
		s, ok := v.(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("its %s holds something else than text", name)
		case len(s) > limit:
			return nil, fmt.Errorf("its %s holds a text of more than %d bytes", name, limit)
		}
		out = append(out, s)
	}
	return out, nil
}

// getFlag reports whether a field is true.
func (o object) getFlag(name string) bool {
	yes, _ := o[name].(bool)
	return yes
}

// splitScopes returns the distinct scope tokens of list. Invalid tokens are dropped.
func splitScopes(list []string) []string {
	return strings.Fields(cleanScope(strings.Join(list, " ")))
}

// cleanScope returns the distinct scope tokens of s, separated by single spaces. It drops tokens with characters that
// RFC 6749 §3.3 does not allow. It returns "" if s is longer than maxScope.
func cleanScope(s string) string {
	if len(s) > maxScope {
		return ""
	}
	var out []string
	seen := map[string]bool{}
	for _, token := range strings.Split(s, " ") {
		if token == "" || seen[token] || strings.ContainsFunc(token, isNoScopeRune) {
			continue
		}
		seen[token] = true
		out = append(out, token)
	}
	return strings.Join(out, " ")
}

func isNoScopeRune(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

// UnionScopes returns the distinct scopes of a and b. It is used when a server requires more scopes than before (MCP,
// SEP-2350). If both together are too long it returns only a, because an empty scope can mean all scopes.
func UnionScopes(a, b string) string {
	if len(a)+1+len(b) > maxScope {
		return cleanScope(a)
	}
	return cleanScope(a + " " + b)
}
