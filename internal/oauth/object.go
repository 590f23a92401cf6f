package oauth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/strictjson"
)

// object is a JSON object of a stranger. Its numbers are json.Number.
type object map[string]any

// errNotObject says nothing of the text: it may hold secrets.
var errNotObject = errors.New("it is not a JSON object")

// parseObject reads one JSON object. Names count by the letter, and one that stands twice is refused: two readers of
// such a text need not agree on what it says. Errors hold nothing of the text and continue "it …".
func parseObject(raw []byte) (object, error) {
	v, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxDepth})
	switch {
	case fault == nil:
	case fault.Kind == strictjson.Duplicate:
		return nil, errors.New("a name stands in it twice")
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

// getText is a field that holds a string of at most limit bytes; "" when it is absent or null. Errors continue "it …"
// and show no value.
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

// getTexts is a field that holds a list of at most most strings; nil when it is absent or null.
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

// getFlag is a field that is true; anything else is no.
func (o object) getFlag(name string) bool {
	yes, _ := o[name].(bool)
	return yes
}

// splitScopes are the scope tokens of a list, each once; what is none is left out.
func splitScopes(list []string) []string {
	return strings.Fields(cleanScope(strings.Join(list, " ")))
}

// cleanScope is a scope parameter with single spaces: each of its tokens once, those with other characters than RFC
// 6749 §3.3 allows left out. "" when it is longer than anybody needs.
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

// UnionScopes are the scopes of both parameters, each once: what is asked for when a server wants more than before
// (MCP, SEP-2350). It is a alone when both together are longer than anybody needs: to ask for none may mean all.
func UnionScopes(a, b string) string {
	if len(a)+1+len(b) > maxScope {
		return cleanScope(a)
	}
	return cleanScope(a + " " + b)
}
