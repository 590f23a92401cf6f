package oauth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// object is a JSON object of a stranger. Its numbers are json.Number.
type object map[string]any

// errNotObject says nothing of the text: it may hold secrets.
var errNotObject = errors.New("it is not a JSON object")

// parseObject reads one JSON object. Names count by the letter, and one that stands twice is refused: two readers of
// such a text need not agree on what it says. Errors hold nothing of the text and continue "it …".
func parseObject(raw []byte) (object, error) {
	if !json.Valid(raw) {
		return nil, errNotObject
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := readValue(dec, 0)
	if err != nil {
		return nil, err
	}
	o, ok := v.(object)
	if !ok {
		return nil, errNotObject
	}
	return o, nil
}

func readValue(dec *json.Decoder, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, errNotObject
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth >= maxDepth {
		return nil, fmt.Errorf("it nests deeper than %d levels", maxDepth)
	}
	var v any
	if delim == '{' {
		v, err = readFields(dec, depth)
	} else {
		v, err = readItems(dec, depth)
	}
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != nil { // } or ]
		return nil, errNotObject
	}
	return v, nil
}

func readFields(dec *json.Decoder, depth int) (object, error) {
	o := object{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, errNotObject
		}
		if _, twice := o[name]; twice {
			return nil, errors.New("a name stands in it twice")
		}
		if o[name], err = readValue(dec, depth+1); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func readItems(dec *json.Decoder, depth int) ([]any, error) {
	list := []any{}
	for dec.More() {
		v, err := readValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// text is a field that holds a string of at most limit bytes; "" when it is absent or null. Errors continue "it …" and show no value.
func (o object) text(name string, limit int) (string, error) {
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

// texts is a field that holds a list of at most most strings; nil when it is absent or null.
func (o object) texts(name string, most, limit int) ([]string, error) {
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

// flag is a field that is true; anything else is no.
func (o object) flag(name string) bool {
	yes, _ := o[name].(bool)
	return yes
}

// scopes are the scope tokens of a list, each once; what is none is left out.
func scopes(list []string) []string {
	return strings.Fields(cleanScope(strings.Join(list, " ")))
}

// cleanScope is a scope parameter with single spaces: each of its tokens once, those with other characters than RFC 6749 §3.3 allows left
// out. "" when it is longer than anybody needs.
func cleanScope(s string) string {
	if len(s) > maxScope {
		return ""
	}
	var out []string
	seen := map[string]bool{}
	for _, token := range strings.Split(s, " ") {
		if token == "" || seen[token] || strings.ContainsFunc(token, notScope) {
			continue
		}
		seen[token] = true
		out = append(out, token)
	}
	return strings.Join(out, " ")
}

func notScope(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

// UnionScopes are the scopes of both parameters, each once: what is asked for when a server wants more than before (MCP, SEP-2350). It is a
// alone when both together are longer than anybody needs: to ask for none may mean all.
func UnionScopes(a, b string) string {
	if len(a)+1+len(b) > maxScope {
		return cleanScope(a)
	}
	return cleanScope(a + " " + b)
}
