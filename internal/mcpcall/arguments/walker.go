package arguments

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// typeSet is a set of JSON types. Integers and numbers with a fraction are separate types.
type typeSet uint8

const (
	typeNull typeSet = 1 << iota
	typeBool
	typeInteger
	typeFraction
	typeString
	typeArray
	typeObject

	typeNumber = typeInteger | typeFraction
	typeAny    = typeNull | typeBool | typeNumber | typeString | typeArray | typeObject
)

var typeNames = map[string]typeSet{
	"null": typeNull, "boolean": typeBool, "integer": typeInteger, "number": typeNumber,
	"string": typeString, "array": typeArray, "object": typeObject,
}

// maxWalkerSteps bounds how much of a schema one Fit examines. When it is used up, Fit adapts nothing more and leaves
// the decision to the validation.
const maxWalkerSteps = 20_000

// schemaWalker finds the constraints of a compiled schema on a property. References are resolved in a compiled schema,
// and each part follows the JSON Schema revision in which it is written. When the walker does not understand a part or
// has no steps left, it assumes fewer constraints: nothing is adapted, and validation decides.
type schemaWalker struct {
	steps int
}

// takeSteps uses n steps and reports whether any are left.
func (w *schemaWalker) takeSteps(n int) bool {
	w.steps -= n
	return w.steps > 0
}

// mayEnter reports whether the walker may examine s, and uses one step for it.
func (w *schemaWalker) mayEnter(s *jsonschema.Schema, depth int) bool {
	return s != nil && depth <= maxWalkerDepth && w.takeSteps(1)
}

const maxWalkerDepth = 16 // nesting depth of references and combinators

// appliedTogether yields the other schemas that apply to every value that s applies to: the target of $ref and the
// members of allOf.
func appliedTogether(s *jsonschema.Schema) iter.Seq[*jsonschema.Schema] {
	return func(yield func(*jsonschema.Schema) bool) {
		if s.Ref != nil && !yield(s.Ref) {
			return
		}
		for _, part := range s.AllOf {
			if !yield(part) {
				return
			}
		}
	}
}

// alternativeGroups yields anyOf and oneOf: groups of schemas of which one has to apply.
func alternativeGroups(s *jsonschema.Schema) iter.Seq[[]*jsonschema.Schema] {
	return func(yield func([]*jsonschema.Schema) bool) {
		if len(s.AnyOf) > 0 && !yield(s.AnyOf) {
			return
		}
		if len(s.OneOf) > 0 {
			yield(s.OneOf)
		}
	}
}

// isFalse reports whether s is the schema false.
func isFalse(s *jsonschema.Schema) bool { return s != nil && s.Bool != nil && !*s.Bool }

// allowedTypes returns the types that s allows.
func (w *schemaWalker) allowedTypes(s *jsonschema.Schema, depth int) typeSet {
	if isFalse(s) {
		return 0
	}
	if !w.mayEnter(s, depth) {
		return typeAny
	}
	t := declaredTypes(s)
	if s.Const != nil {
		t &= typeOf(*s.Const)
	}
	if s.Enum != nil && w.takeSteps(len(s.Enum.Values)) {
		var of typeSet
		for _, v := range s.Enum.Values {
			of |= typeOf(v)
		}
		t &= of
	}
	for part := range appliedTogether(s) {
		t &= w.allowedTypes(part, depth+1)
	}
	for group := range alternativeGroups(s) {
		var of typeSet
		for _, member := range group {
			of |= w.allowedTypes(member, depth+1)
		}
		t &= of
	}
	return t
}

// declaredTypes returns the types of the keyword type of s.
func declaredTypes(s *jsonschema.Schema) typeSet {
	if s.Types == nil {
		return typeAny
	}
	var t typeSet
	for _, name := range s.Types.ToStrings() {
		t |= typeNames[name]
	}
	return t
}

// typeOf returns the JSON types that a decoded value may have. A number written with a fraction or exponent may also be
// an integer.
func typeOf(v any) typeSet {
	switch v := v.(type) {
	case nil:
		return typeNull
	case bool:
		return typeBool
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			return typeNumber
		}
		return typeInteger
	case string:
		return typeString
	case []any:
		return typeArray
	case map[string]any:
		return typeObject
	}
	return typeAny
}

// ownProperty returns the schemas for name in properties and patternProperties of s itself. It returns too many when no
// steps are left.
func (w *schemaWalker) ownProperty(s *jsonschema.Schema, name string) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	if p, ok := s.Properties[name]; ok {
		out = append(out, p)
	}
	for re, p := range s.PatternProperties {
		if w.matchesPattern(re, name) {
			out = append(out, p)
		}
	}
	return out
}

// matchesPattern reports whether re matches name. Like the validator, it returns true when it cannot find out.
func (w *schemaWalker) matchesPattern(re jsonschema.Regexp, name string) bool {
	p, ok := re.(*pattern)
	return !ok || p.re == nil || !w.takeSteps(p.cost(name)) || p.re.MatchString(name)
}

// propertySchema returns one schema with all constraints of s on the property called name; nil if s has none.
func (w *schemaWalker) propertySchema(s *jsonschema.Schema, name string) *jsonschema.Schema {
	return allOf(w.propertySchemas(s, name, 0))
}

// allOf combines several schemas into one.
func allOf(of []*jsonschema.Schema) *jsonschema.Schema {
	switch len(of) {
	case 0:
		return nil
	case 1:
		return of[0]
	}
	return &jsonschema.Schema{AllOf: of}
}

// propertySchemas returns the schemas that s applies to its property called name. For an anyOf or oneOf it combines the
// members into one schema.
func (w *schemaWalker) propertySchemas(s *jsonschema.Schema, name string, depth int) []*jsonschema.Schema {
	if !w.mayEnter(s, depth) {
		return nil
	}
	out := w.ownProperty(s, name)
	if w.steps <= 0 {
		return nil
	}
	if additional, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && len(out) == 0 {
		out = append(out, additional)
	}
	for part := range appliedTogether(s) {
		out = append(out, w.propertySchemas(part, name, depth+1)...)
	}
	for group := range alternativeGroups(s) {
		var members []*jsonschema.Schema
		for _, member := range group {
			of := allOf(w.propertySchemas(member, name, depth+1))
			if of == nil {
				members = nil // this alternative has no constraint, so the group has none
				break
			}
			members = append(members, of)
		}
		if members != nil {
			out = append(out, &jsonschema.Schema{AnyOf: members})
		}
	}
	return out
}

// itemSchema returns the schema of an array's elements if all elements share one, else nil.
func (w *schemaWalker) itemSchema(s *jsonschema.Schema) *jsonschema.Schema {
	for depth := 0; w.mayEnter(s, depth); depth++ {
		switch items := s.Items.(type) {
		case *jsonschema.Schema:
			return items
		case []*jsonschema.Schema:
			return nil
		}
		if s.Items2020 != nil || len(s.PrefixItems) > 0 {
			if len(s.PrefixItems) > 0 {
				return nil
			}
			return s.Items2020
		}
		var only *jsonschema.Schema
		for part := range appliedTogether(s) {
			if only != nil {
				return nil
			}
			only = part
		}
		s = only
	}
	return nil
}

// holdsAlways reports whether own is true for a schema to which each value of s conforms: s itself, one that is applied
// together with it, or each member of an anyOf or oneOf. No value conforms to the schema false.
func (w *schemaWalker) holdsAlways(s *jsonschema.Schema, depth int,
	own func(s *jsonschema.Schema, depth int) bool) bool {
	switch {
	case isFalse(s):
		return true
	case !w.mayEnter(s, depth):
		return false
	case own(s, depth):
		return true
	}
	for part := range appliedTogether(s) {
		if w.holdsAlways(part, depth+1, own) {
			return true
		}
	}
	for group := range alternativeGroups(s) {
		lacks := func(member *jsonschema.Schema) bool { return !w.holdsAlways(member, depth+1, own) }
		if !slices.ContainsFunc(group, lacks) {
			return true
		}
	}
	return false
}

// requiresProperty reports whether s requires a property called name in all cases.
func (w *schemaWalker) requiresProperty(s *jsonschema.Schema, name string) bool {
	return w.holdsAlways(s, 0, func(s *jsonschema.Schema, _ int) bool {
		return w.takeSteps(len(s.Required)) && slices.Contains(s.Required, name)
	})
}

// refusesEmpty reports whether s allows strings and has a format that accepts no empty string. An agent that validates
// formats refuses the whole call then.
func (w *schemaWalker) refusesEmpty(s *jsonschema.Schema) bool {
	return w.holdsAlways(s, 0, func(s *jsonschema.Schema, depth int) bool {
		return s.Format != nil && s.Format.Name == formatNotEmpty ||
			depth > 0 && w.allowedTypes(s, depth)&typeString == 0 // an alternative for other values
	})
}

// forbidsProperty reports whether no object with a property called name can satisfy s.
func (w *schemaWalker) forbidsProperty(s *jsonschema.Schema, name string) bool {
	return w.holdsAlways(s, 0, func(s *jsonschema.Schema, depth int) bool {
		here := w.ownProperty(s, name)
		if w.steps <= 0 {
			return false
		}
		if slices.ContainsFunc(here, isFalse) {
			return true
		}
		if open, ok := s.AdditionalProperties.(bool); ok && !open && len(here) == 0 {
			return true
		}
		if isFalse(s.UnevaluatedProperties) && !w.mayEvaluate(s, name, depth) {
			return true
		}
		if s.PropertyNames == nil || s.PropertyNames.Enum == nil {
			return false
		}
		names := s.PropertyNames.Enum.Values
		return w.takeSteps(len(names)) && !slices.ContainsFunc(names, func(v any) bool { return v == name })
	})
}

// mayEvaluate reports whether a part of s that may apply has a constraint on name, so that unevaluatedProperties of s
// does not apply to it. It also returns true when it cannot find out.
func (w *schemaWalker) mayEvaluate(s *jsonschema.Schema, name string, depth int) bool {
	if s.AdditionalProperties != nil || len(w.ownProperty(s, name)) > 0 {
		return true
	}
	inside := func(part *jsonschema.Schema) bool {
		switch {
		case part == nil:
			return false
		case !w.mayEnter(part, depth+1):
			return true
		}
		return part.UnevaluatedProperties != nil || w.mayEvaluate(part, name, depth+1)
	}
	for part := range appliedTogether(s) {
		if inside(part) {
			return true
		}
	}
	for group := range alternativeGroups(s) {
		if slices.ContainsFunc(group, inside) {
			return true
		}
	}
	if inside(s.If) || inside(s.Then) || inside(s.Else) {
		return true
	}
	for _, part := range s.DependentSchemas {
		if inside(part) {
			return true
		}
	}
	for _, d := range s.Dependencies {
		if part, ok := d.(*jsonschema.Schema); ok && inside(part) {
			return true
		}
	}
	return false
}
