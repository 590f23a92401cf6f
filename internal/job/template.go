package job

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/agentherald/herald/internal/strictjson"
)

// placeholder matches {{name}}, with or without spaces inside.
var placeholder = regexp.MustCompile(`\{\{\s*([^{}]*?)\s*\}\}`)

// maxRendered is the largest size of a rendered template, in bytes. A template can contain a long value many times.
const maxRendered = 4 << 20

// findVariable returns the argument that the placeholder {{name}} is replaced by. name is one of ArgumentNames, its
// snake_case form, or verified_file_content.
func findVariable(k Kind, name string) (argument string, ok bool) {
	if name == "verified_file_content" {
		name = "fileContent"
	}
	for _, a := range ArgumentNames(k) {
		if a == name || toSnakeCase(a) == name {
			return a, true
		}
	}
	return "", false
}

func toSnakeCase(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// readTemplate reads a payloadTemplate: an object in which every placeholder names an argument of kind k. It returns
// nil if the field is absent.
func (r *fieldReader) readTemplate(name string, k Kind) json.RawMessage {
	v, _ := r.readObject(name)
	if v == nil {
		return nil
	}
	if refusal := checkTemplate(k, v); refusal != nil {
		r.fail(refusal)
	}
	return v.Encode()
}

// checkTemplate returns a refusal for the first placeholder in v that names no argument of kind k, with the path of its
// string. It returns nil if there is no such placeholder. Placeholders in names of members are not checked, because
// they are not expanded.
func checkTemplate(k Kind, v *strictjson.Value) *Refusal {
	var parts []*strictjson.Value
	switch data := v.Data.(type) {
	case *strictjson.Object:
		parts = data.Members
	case []*strictjson.Value:
		parts = data
	case string:
		for _, m := range placeholder.FindAllStringSubmatch(data, -1) {
			if _, ok := findVariable(k, m[1]); !ok {
				return refuse(v.Path(), "knows no value %s; a %s has %s", strictjson.Quote(m[1]), k,
					strings.Join(ArgumentNames(k), ", "))
			}
		}
	}
	for _, part := range parts {
		if refusal := checkTemplate(k, part); refusal != nil {
			return refusal
		}
	}
	return nil
}

// RenderTemplate fills the job's payloadTemplate with the arguments. A string that consists of one placeholder becomes
// the value itself, with its type. Within other text, values are formatted as text, and null becomes the empty string.
// Names of members are not expanded. It fails if the result is larger than maxRendered.
func (j Job) RenderTemplate(args map[string]any) (map[string]any, error) {
	dec := json.NewDecoder(strings.NewReader(string(j.Action.PayloadTemplate)))
	dec.UseNumber()
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	room := maxRendered
	out, err := j.renderValue(v, args, &room)
	if err != nil {
		return nil, err
	}
	return out.(map[string]any), nil
}

// renderValue renders all strings in v, changing maps and lists in place, and returns the result. room is the number of
// bytes that further values may have; it is reduced by each rendered value.
func (j Job) renderValue(v any, args map[string]any, room *int) (any, error) {
	var err error
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if v[k], err = j.renderValue(e, args, room); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, e := range v {
			if v[i], err = j.renderValue(e, args, room); err != nil {
				return nil, err
			}
		}
	case string:
		return j.renderString(v, args, room)
	}
	return v, nil
}

// renderString renders one string: to an argument if it is one placeholder, else to text. room is as in renderValue.
func (j Job) renderString(s string, args map[string]any, room *int) (any, error) {
	if m := placeholder.FindStringSubmatch(s); m != nil && m[0] == s {
		name, ok := findVariable(j.Kind, m[1])
		if !ok {
			return nil, fmt.Errorf("{{%s}} is not a value of this kind", m[1])
		}
		if *room -= sizeOf(args[name]); *room < 0 {
			return nil, fmt.Errorf("renders to more than %d bytes", maxRendered)
		}
		return args[name], nil
	}
	var failed error
	out := placeholder.ReplaceAllStringFunc(s, func(m string) string {
		name, ok := findVariable(j.Kind, placeholder.FindStringSubmatch(m)[1])
		if !ok {
			failed = fmt.Errorf("%s is not a value of this kind", m)
			return ""
		}
		text := formatText(args[name])
		if *room -= len(text); *room < 0 {
			failed = fmt.Errorf("renders to more than %d bytes", maxRendered)
			return ""
		}
		return text
	})
	return out, failed
}

// sizeOf estimates the encoded size of an argument in bytes.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case json.RawMessage:
		return len(v)
	}
	return 64
}

// formatText formats an argument for use within other text.
func formatText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.RawMessage:
		return string(v)
	case Decimal:
		return v.String()
	}
	return fmt.Sprint(v)
}
