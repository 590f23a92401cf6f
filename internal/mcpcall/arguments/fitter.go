package arguments

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentherald/herald/internal/job"
)

// Fit adapts args to the schema and validates them; the error is a *SchemaError. args is not changed.
//
//   - A name that the schema forbids (additionalProperties and unevaluatedProperties false, a false subschema,
//     propertyNames with an enum) is dropped.
//   - A null where null is not allowed, or an empty string that the schema refuses, is dropped when the schema does not
//     require it.
//   - A null where the schema requires a string becomes the empty string.
//   - A job.Decimal becomes an exact number; an integer, rounded half to even, where the schema says integer; a string
//     where it says string. One outside 0 to 100 is dropped.
//   - A string becomes a number, and a number a string, where the schema takes only the other.
//   - Raw JSON is never altered; where the schema takes only a string it becomes its own text.
//
// The schema of a tool that has none takes anything.
func (s *Schema) Fit(args map[string]any) (map[string]any, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	f := argumentFitter{schemaWalker{steps: maxWalkerSteps}}
	fitted := f.fitObject(s.compiled, args)
	if s.compiled == nil {
		return fitted, nil
	}
	instance, err := decodeArguments(fitted)
	if err != nil {
		return nil, err
	}
	err = s.validate(instance)
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) && f.dropEmptyStrings(s.compiled, invalid, fitted, instance) {
		err = s.validate(instance)
	}
	if err == nil {
		return fitted, nil
	}
	if errors.As(err, &invalid) {
		return nil, explainInvalid(invalid)
	}
	return nil, err
}

// argumentFitter adapts values to what a schema says about them.
type argumentFitter struct {
	schemaWalker
}

// dropped marks an argument that is left out.
var dropped any = droppedValue{}

type droppedValue struct{}

// fitObject adapts the values of an object to schema; a nil schema says nothing.
func (f *argumentFitter) fitObject(schema *jsonschema.Schema, v map[string]any) map[string]any {
	out := make(map[string]any, len(v))
	for name, value := range v {
		if f.forbidsProperty(schema, name, 0) {
			continue
		}
		property := f.propertySchema(schema, name)
		types := f.allowedTypes(property, 0)
		if value == nil && types&typeNull == 0 {
			if !f.requiresProperty(schema, name, 0) {
				continue
			}
			if types&typeString != 0 {
				value = "" // how the chain writes "none"
			}
		}
		if value = f.fitValue(property, types, value); value != dropped {
			out[name] = value
		}
	}
	return out
}

// fitValue adapts v to schema, which lets through these types. A nil schema says nothing.
func (f *argumentFitter) fitValue(schema *jsonschema.Schema, types typeSet, v any) any {
	switch v := v.(type) {
	case map[string]any:
		return f.fitObject(schema, v)
	case []any:
		item := f.itemSchema(schema)
		itemTypes := f.allowedTypes(item, 0)
		out := make([]any, len(v))
		for i, e := range v {
			if out[i] = f.fitValue(item, itemTypes, e); out[i] == dropped {
				out[i] = nil
			}
		}
		return out
	case job.Decimal:
		return fitDecimal(v, types)
	case string:
		whole := !strings.ContainsAny(v, ".eE")
		if types&typeString == 0 && types&typeNumber != 0 && isPlainNumber(v) && (types&typeFraction != 0 || whole) {
			return json.Number(v)
		}
	case json.Number:
		if types&typeNumber == 0 && types&typeString != 0 {
			return v.String()
		}
	case json.RawMessage:
		if first := firstByte(v); types == typeString || types == typeString|typeNull {
			if first == '"' || first == 'n' && types&typeNull != 0 {
				return v
			}
			return string(v)
		}
	}
	return v
}

// dropEmptyStrings removes from fitted and instance the optional empty strings that the schema refused, and reports
// whether there were any.
func (f *argumentFitter) dropEmptyStrings(schema *jsonschema.Schema, invalid *jsonschema.ValidationError,
	fitted, instance map[string]any) (any bool) {
	for _, leaf := range leafErrors(invalid, nil) {
		if len(leaf.InstanceLocation) != 1 {
			continue
		}
		name := leaf.InstanceLocation[0]
		if instance[name] == "" && !f.requiresProperty(schema, name, 0) {
			delete(fitted, name)
			delete(instance, name)
			any = true
		}
	}
	return any
}

// fitDecimal writes d as one of these types. Scores below 0 and above 100 are dropped.
func fitDecimal(d job.Decimal, types typeSet) any {
	if d.Unscaled == nil || d.Unscaled.Sign() < 0 {
		return dropped
	}
	text := d.String()
	whole, fraction, _ := strings.Cut(text, ".")
	if len(whole) > 3 || len(whole) == 3 && text != "100" {
		return dropped
	}
	switch {
	case types&typeFraction != 0:
		return json.Number(text)
	case types&typeInteger != 0:
		// Half to even: one more when the rest is above half, or is half and the number odd.
		if fraction > "5" || fraction == "5" && (whole[len(whole)-1]-'0')%2 == 1 {
			n, _ := strconv.Atoi(whole) // three digits at most
			whole = strconv.Itoa(n + 1)
		}
		return json.Number(whole)
	case types&typeString != 0:
		return text
	}
	return json.Number(text) // the validation will name what is wanted
}

var numberForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// isPlainNumber: a decimal as JSON writes it, without exponent.
func isPlainNumber(s string) bool { return len(s) <= maxDigits && numberForm.MatchString(s) }

func firstByte(raw json.RawMessage) byte {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) > 0 {
		return trimmed[0]
	}
	return 0
}

// decodeArguments returns args as the validator knows them: nothing but the types of encoding/json, raw JSON decoded,
// and numbers that exact arithmetic would choke on replaced by ones of the same sign that it bears. What is sent stays
// as it was.
func decodeArguments(args map[string]any) (map[string]any, error) {
	out := make(map[string]any, len(args))
	for name, value := range args {
		switch value.(type) {
		case nil, bool, string:
			out[name] = value
			continue
		}
		raw, isRaw := value.(json.RawMessage)
		if !isRaw {
			var err error
			if raw, err = json.Marshal(value); err != nil {
				return nil, &SchemaError{Path: name, Problem: "it cannot be written as JSON"}
			}
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		var decoded any
		if err := dec.Decode(&decoded); err != nil {
			return nil, &SchemaError{Path: name, Problem: "it is not valid JSON"}
		}
		out[name] = tameNumbers(decoded)
	}
	return out, nil
}

// tameNumbers replaces huge numbers in a decoded document, in place.
func tameNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		switch {
		case !isHugeNumber(string(v)):
			return v
		case strings.HasPrefix(string(v), "-"):
			return json.Number("-1e308")
		}
		return json.Number("1e308")
	case map[string]any:
		for name, e := range v {
			v[name] = tameNumbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = tameNumbers(e)
		}
	}
	return v
}
