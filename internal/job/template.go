package job

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/agentherald/herald/internal/base/strictjson"
)

// placeholder matches {{name}}, with or without spaces around the name, and captures the name.
var placeholder = regexp.MustCompile(`\{\{\s*([^{}]*?)\s*\}\}`)

// maxRendered bounds the total size, in bytes, of the values that replace placeholders in one template. A template may
// contain the placeholder of a long value many times.
const maxRendered = 4 << 20

// findVariable returns the name of the argument that replaces the placeholder {{name}} in a template for kind k. name
// is a name of ArgumentNames, its snake_case form, or verified_file_content (of the old backend) for fileContent. ok is
// false for any other name.
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
// nil if the field is absent or not an object.
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

// checkTemplate returns a refusal, with its path in v, for the first of two faults, or nil. The first fault is a
// placeholder that names no argument of kind k. The second one is a member for a delivery's id (isDeliveryID) with
// another value than the delivery's own id: if it were the id of another delivery, the agent would take that delivery
// for a duplicate. Placeholders in names of members are not checked, because RenderTemplate does not replace them.
func checkTemplate(k Kind, v *strictjson.Value) *Refusal {
	if isDeliveryID(v.Name) && !isOwnID(k, v.Data) {
		return refuse(v.Path(), "must be {{deliveryId}} or {{retracts}}: agents read the id of a delivery from it")
	}
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

// isOwnID reports whether value, a part of a template for kind k, is a placeholder for an id of the delivery itself.
func isOwnID(k Kind, value any) bool {
	s, _ := value.(string)
	m := placeholder.FindStringSubmatch(s)
	if m == nil || m[0] != s {
		return false
	}
	name, _ := findVariable(k, m[1])
	return isDeliveryID(name)
}

// RenderTemplate returns the job's payloadTemplate with its placeholders replaced by values of args. A string that
// consists of one placeholder becomes the value itself, with its type. Within longer text, values are formatted as
// text, and null becomes the empty string. Placeholders in names of members are not replaced. It returns an error if
// the template is not an object, a placeholder names no argument, or the values exceed maxRendered.
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

// renderValue returns v, a decoded JSON value, with the placeholders in all its strings replaced by values of args. It
// changes the maps and lists of v in place. *room is the number of bytes that may still replace placeholders.
// renderValue subtracts the size of each replacement, and returns an error when the result is negative.
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

// renderString replaces the placeholders in s. If s consists of one placeholder, the result is the value of its
// argument in args, with the type of that value. Otherwise the result is s with the text of each argument (formatText).
// room is as in renderValue.
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

// sizeOf returns the bytes that renderString counts for an argument which replaces a whole string: the length of a
// string or of JSON, and for any other argument (a number or nil) 64, an upper bound.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case json.RawMessage:
		return len(v)
	}
	return 64
}

// formatText returns an argument as a part of longer text: nil as the empty string, a string and JSON unchanged, and a
// number in decimal.
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
