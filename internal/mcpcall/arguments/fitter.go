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

// Fit returns args adapted to the schema and validated. The error is a *SchemaError. args is not changed.
//
//   - A property that the schema forbids is dropped (by additionalProperties or unevaluatedProperties false, a false
//     subschema, or propertyNames with an enum).
//   - A null that the schema does not allow, or an empty string that it rejects (also by its format), is dropped if the
//     property is optional.
//   - A null becomes the empty string if the schema requires a string.
//   - A job.Decimal becomes an exact number; an integer, rounded half to even, if the schema allows only integers; a
//     string if it allows only strings. A value outside 0 to 100 is dropped.
//   - A string becomes a number, and a number a string, if the schema allows only the other type.
//   - Raw JSON is never altered. If the schema allows only a string, the JSON text becomes that string.
//
// A tool without a schema accepts any arguments.
func (s *Schema) Fit(args map[string]any) (map[string]any, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	f := argumentFitter{schemaWalker: schemaWalker{steps: maxWalkerSteps}}
	fitted, err := s.fitWith(&f, args)
	if err != nil && f.omitted { // the schema may require the string, for example by dependentRequired
		return s.fitWith(&argumentFitter{schemaWalker: schemaWalker{steps: maxWalkerSteps}, keepsEmpty: true}, args)
	}
	return fitted, err
}

// fitWith is Fit with f, for a schema that is prepared.
func (s *Schema) fitWith(f *argumentFitter, args map[string]any) (map[string]any, error) {
	fitted := f.fitObject(s.compiled, args)
	if s.compiled == nil {
		return fitted, nil
	}
	instance, err := decodeArguments(fitted)
	if err != nil {
		return nil, err
	}
	err = s.validate(instance)
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if ok && f.dropEmptyStrings(s.compiled, invalid, fitted, instance) {
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

// argumentFitter adapts values to a schema.
type argumentFitter struct {
	schemaWalker
	keepsEmpty bool // an empty string is kept although its format does not accept it
	omitted    bool // such a string was omitted
}

// dropped marks an argument that must be omitted.
var dropped any = droppedValue{}

type droppedValue struct{}

// fitObject adapts the values of an object to schema. A nil schema allows everything.
func (f *argumentFitter) fitObject(schema *jsonschema.Schema, v map[string]any) map[string]any {
	out := make(map[string]any, len(v))
	for name, value := range v {
		if f.forbidsProperty(schema, name) {
			continue
		}
		property := f.propertySchema(schema, name)
		types := f.allowedTypes(property, 0)
		if value == nil && types&typeNull == 0 {
			if !f.requiresProperty(schema, name) {
				continue
			}
			if types&typeString != 0 {
				value = "" // the chain represents "none" as an empty string
			}
		}
		if value == "" && !f.keepsEmpty && f.refusesEmpty(property) && !f.requiresProperty(schema, name) {
			f.omitted = true
			continue
		}
		if value = f.fitValue(property, types, value); value != dropped {
			out[name] = value
		}
	}
	return out
}

// fitValue adapts v to schema, which allows the given types. A nil schema allows everything.
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

// dropEmptyStrings removes from fitted and instance the optional empty strings that the schema rejected, and reports
// whether there were any.
func (f *argumentFitter) dropEmptyStrings(schema *jsonschema.Schema, invalid *jsonschema.ValidationError,
	fitted, instance map[string]any) (any bool) {
	for _, leaf := range leafErrors(invalid, nil) {
		if len(leaf.InstanceLocation) != 1 {
			continue
		}
		name := leaf.InstanceLocation[0]
		if instance[name] == "" && !f.requiresProperty(schema, name) {
			delete(fitted, name)
			delete(instance, name)
			any = true
		}
	}
	return any
}

// fitDecimal converts d to one of the given types. It drops scores below 0 and above 100.
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
		// Half to even: round up if the fraction is above one half, or if it is one half and the integer is odd.
		if fraction > "5" || fraction == "5" && (whole[len(whole)-1]-'0')%2 == 1 {
			n, _ := strconv.Atoi(whole) // three digits at most
			whole = strconv.Itoa(n + 1)
		}
		return json.Number(whole)
	case types&typeString != 0:
		return text
	}
	return json.Number(text) // validation then reports the expected type
}

var numberForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// isPlainNumber reports whether s is a JSON number without an exponent, of at most maxDigits bytes.
func isPlainNumber(s string) bool { return len(s) <= maxDigits && numberForm.MatchString(s) }

func firstByte(raw json.RawMessage) byte {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) > 0 {
		return trimmed[0]
	}
	return 0
}

// decodeArguments converts args to the types that the validator expects: only types of encoding/json, with raw JSON
// decoded. It replaces numbers whose exact arithmetic would take too much memory by ±1e308. Only the validator sees
// these values; the arguments that are sent do not change.
func decodeArguments(args map[string]any) (map[string]any, error) {
	out := make(map[string]any, len(args))
	for name, value := range args {
		switch value.(type) {
		case nil, bool, string, json.Number:
			out[name] = tameNumbers(value)
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
