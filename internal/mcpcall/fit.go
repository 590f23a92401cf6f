package mcpcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentherald/herald/internal/job"
)

// Fit returns args as t's input schema wants them (DESIGN §8), validated; the error is a *SchemaError. args is not changed.
//
//   - A name that the schema forbids (additionalProperties and unevaluatedProperties false, a false subschema, propertyNames with
//     an enum) is dropped.
//   - A null where null is not allowed, or an empty string that the schema refuses, is dropped when the schema does not require it.
//   - A null where the schema requires a string becomes the empty string.
//   - A job.Decimal becomes an exact number; an integer, rounded half to even, where the schema says integer; a string where it
//     says string. One outside 0 to 100 is dropped.
//   - A string becomes a number, and a number a string, where the schema takes only the other.
//   - Raw JSON is never altered; where the schema takes only a string it becomes its own text.
//
// A tool without a schema takes anything.
func Fit(t Tool, args map[string]any) (map[string]any, error) {
	schema := t.schema
	if schema == nil {
		schema = &inputSchema{}
	}
	if err := schema.prepare(t.InputSchema); err != nil {
		return nil, err
	}
	f := fitter{steps: maxFitSteps}
	out := f.fields(args, func(name string) plan { return f.plan(schema.compiled, name) })
	if schema.compiled == nil {
		return out, nil
	}
	values := out
	if !plain(out) {
		instance, err := decoded(out, "")
		if err != nil {
			return nil, err
		}
		values = instance.(map[string]any)
	}
	err := schema.validate(values)
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) && f.dropEmpty(schema.compiled, invalid, out, values) {
		err = schema.validate(values)
	}
	if err == nil {
		return out, nil
	}
	if errors.As(err, &invalid) {
		return nil, explainInvalid(invalid)
	}
	return nil, err
}

// maxFitSteps bounds how much of a schema one Fit looks at before it stops adapting and leaves the rest to the validation.
const maxFitSteps = 20_000

// plan is what a schema says about one property of an object.
type plan struct {
	forbidden bool               // no object with it satisfies the schema
	required  bool               // it has to be there
	schema    *jsonschema.Schema // of its value; nil says nothing
	types     types              // that its value may have
}

// plan asks schema about its property name.
func (f *fitter) plan(schema *jsonschema.Schema, name string) plan {
	if f.forbidden(schema, name, 0) {
		return plan{forbidden: true}
	}
	sub := f.property(schema, name)
	return plan{required: f.requires(schema, name, 0), schema: sub, types: f.types(sub, 0)}
}

// fields adapts the values of an object as the plans of its properties say.
func (f *fitter) fields(v map[string]any, of func(name string) plan) map[string]any {
	out := make(map[string]any, len(v))
	for name, value := range v {
		p := of(name)
		if p.forbidden {
			continue
		}
		if value == nil && p.types&typeNull == 0 {
			if !p.required {
				continue
			}
			if p.types&typeString != 0 {
				value = "" // how the chain writes "none"
			}
		}
		if value = f.value(p.schema, p.types, value); value != dropped {
			out[name] = value
		}
	}
	return out
}

// value adapts v to the schema, which lets through the types t. A nil schema says nothing.
func (f *fitter) value(schema *jsonschema.Schema, t types, v any) any {
	switch v := v.(type) {
	case map[string]any:
		return f.fields(v, func(name string) plan { return f.plan(schema, name) })
	case []any:
		item := f.items(schema)
		of := f.types(item, 0)
		out := make([]any, len(v))
		for i, e := range v {
			if out[i] = f.value(item, of, e); out[i] == dropped {
				out[i] = nil
			}
		}
		return out
	case job.Decimal:
		return decimalFor(v, t)
	case string:
		if t&typeString == 0 && t&typeNumber != 0 && plainNumber(v) && (t&typeFraction != 0 || !strings.ContainsAny(v, ".eE")) {
			return json.Number(v)
		}
	case json.Number:
		if t&typeNumber == 0 && t&typeString != 0 {
			return v.String()
		}
	case json.RawMessage:
		if first := firstByte(v); t == typeString || t == typeString|typeNull {
			if first == '"' || first == 'n' && t&typeNull != 0 {
				return v
			}
			return string(v)
		}
	}
	return v
}

// droppedValue marks an argument that is left out.
type droppedValue struct{}

var dropped any = droppedValue{}

// dropEmpty removes from out and values the optional empty strings that the schema refused, and reports whether there were any.
func (f *fitter) dropEmpty(schema *jsonschema.Schema, invalid *jsonschema.ValidationError, out, values map[string]any) bool {
	any := false
	for _, leaf := range leaves(invalid, nil) {
		if len(leaf.InstanceLocation) != 1 {
			continue
		}
		name := leaf.InstanceLocation[0]
		if values[name] == "" && !f.requires(schema, name, 0) {
			delete(out, name)
			delete(values, name)
			any = true
		}
	}
	return any
}

// decimalFor writes d as a schema of types t wants it. 0 and 100 are inside.
func decimalFor(d job.Decimal, t types) any {
	if d.Unscaled == nil || d.Unscaled.Sign() < 0 {
		return dropped
	}
	text := decimalText(d)
	whole, fraction, _ := strings.Cut(text, ".")
	if len(whole) > 3 || len(whole) == 3 && text != "100" {
		return dropped
	}
	switch {
	case t&typeFraction != 0:
		return json.Number(text)
	case t&typeInteger != 0:
		// Half to even: one more when the rest is above half, or is half and the number odd.
		if fraction > "5" || fraction == "5" && (whole[len(whole)-1]-'0')%2 == 1 {
			n, _ := strconv.Atoi(whole) // three digits at most
			whole = strconv.Itoa(n + 1)
		}
		return json.Number(whole)
	case t&typeString != 0:
		return text
	}
	return json.Number(text) // the validation will name what is wanted
}

// decimalText is exact, without exponent and without zeros at the end of a fraction.
func decimalText(d job.Decimal) string {
	digits := d.Unscaled.String()
	n := int(d.Decimals)
	if n == 0 {
		return digits
	}
	if missing := n + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	whole, fraction := digits[:len(digits)-n], strings.TrimRight(digits[len(digits)-n:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

var numberForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// plainNumber: a decimal as JSON writes it, without exponent.
func plainNumber(s string) bool { return len(s) <= maxDigits && numberForm.MatchString(s) }

func firstByte(raw json.RawMessage) byte {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) > 0 {
		return trimmed[0]
	}
	return 0
}

// plain: the validator knows v as it is, see decoded.
func plain(v any) bool {
	switch v := v.(type) {
	case nil, bool, string:
		return true
	case json.Number:
		return !hugeNumber(string(v))
	case map[string]any:
		for _, e := range v {
			if !plain(e) {
				return false
			}
		}
		return true
	}
	return false
}

// decoded returns v as the validator knows it: nothing but the types of encoding/json, raw JSON decoded, and numbers that exact
// arithmetic would choke on replaced by ones of the same sign that it bears. What is sent stays as it was.
func decoded(v any, path string) (any, error) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case json.Number:
		return tameNumber(v), nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			at := name
			if path != "" {
				at = path + "." + name
			}
			d, err := decoded(value, at)
			if err != nil {
				return nil, err
			}
			out[name] = d
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			d, err := decoded(value, fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, err
			}
			out[i] = d
		}
		return out, nil
	case json.RawMessage:
		return decodeRaw(v, path)
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, &SchemaError{Path: path, Problem: "it cannot be written as JSON"}
		}
		return decodeRaw(raw, path)
	}
}

func decodeRaw(raw []byte, path string) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil {
		return nil, &SchemaError{Path: path, Problem: "it is not valid JSON"}
	}
	tame(out)
	if n, ok := out.(json.Number); ok {
		return tameNumber(n), nil
	}
	return out, nil
}

func tame(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if n, ok := e.(json.Number); ok {
				v[name] = tameNumber(n)
			} else {
				tame(e)
			}
		}
	case []any:
		for i, e := range v {
			if n, ok := e.(json.Number); ok {
				v[i] = tameNumber(n)
			} else {
				tame(e)
			}
		}
	}
}

func tameNumber(n json.Number) json.Number {
	if !hugeNumber(string(n)) {
		return n
	}
	if strings.HasPrefix(string(n), "-") {
		return "-1e308"
	}
	return "1e308"
}
