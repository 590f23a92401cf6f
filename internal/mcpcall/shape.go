package mcpcall

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// types is a set of JSON types; a number that is no integer is a type of its own.
type types uint8

const (
	typeNull types = 1 << iota
	typeBool
	typeInteger
	typeFraction
	typeString
	typeArray
	typeObject

	typeNumber = typeInteger | typeFraction
	typeAny    = typeNull | typeBool | typeNumber | typeString | typeArray | typeObject
)

var typeNames = map[string]types{"null": typeNull, "boolean": typeBool, "integer": typeInteger, "number": typeNumber,
	"string": typeString, "array": typeArray, "object": typeObject}

// fitter looks at a compiled schema: references are resolved there, and each part is read as the revision of JSON Schema says in which
// it is written. The fitter under-reads what it does not understand or has no steps left for: then nothing is adapted and validation
// decides.
type fitter struct {
	steps int
}

// spend takes n steps and reports whether there are more.
func (f *fitter) spend(n int) bool {
	f.steps -= n
	return f.steps > 0
}

// enter is asked before a schema is looked at.
func (f *fitter) enter(s *jsonschema.Schema, depth int) bool {
	return s != nil && depth <= maxFitDepth && f.spend(1)
}

const maxFitDepth = 16 // of references and combinators inside each other

// together yields the schemas that apply to the same value as s besides s itself: the target of $ref, the members of allOf.
func together(s *jsonschema.Schema) iter.Seq[*jsonschema.Schema] {
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

// alternatives yields the groups of which one member applies.
func alternatives(s *jsonschema.Schema) iter.Seq[[]*jsonschema.Schema] {
	return func(yield func([]*jsonschema.Schema) bool) {
		if len(s.AnyOf) > 0 && !yield(s.AnyOf) {
			return
		}
		if len(s.OneOf) > 0 {
			yield(s.OneOf)
		}
	}
}

// never: s is the schema false.
func never(s *jsonschema.Schema) bool { return s != nil && s.Bool != nil && !*s.Bool }

// types returns the types that s lets through.
func (f *fitter) types(s *jsonschema.Schema, depth int) types {
	if never(s) {
		return 0
	}
	if !f.enter(s, depth) {
		return typeAny
	}
	t := declared(s)
	if s.Const != nil {
		t &= typeOf(*s.Const)
	}
	if s.Enum != nil && f.spend(len(s.Enum.Values)) {
		var of types
		for _, v := range s.Enum.Values {
			of |= typeOf(v)
		}
		t &= of
	}
	for part := range together(s) {
		t &= f.types(part, depth+1)
	}
	for group := range alternatives(s) {
		var of types
		for _, member := range group {
			of |= f.types(member, depth+1)
		}
		t &= of
	}
	return t
}

// declared is what the keyword type of s says.
func declared(s *jsonschema.Schema) types {
	if s.Types == nil {
		return typeAny
	}
	var t types
	for _, name := range s.Types.ToStrings() {
		t |= typeNames[name]
	}
	return t
}

func typeOf(v any) types {
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

// here returns what properties and patternProperties of s itself say about name; too much when no steps are left.
func (f *fitter) here(s *jsonschema.Schema, name string) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	if p, ok := s.Properties[name]; ok {
		out = append(out, p)
	}
	for re, p := range s.PatternProperties {
		if f.matches(re, name) {
			out = append(out, p)
		}
	}
	return out
}

// matches answers yes for what it cannot or may not find out, as the validator does.
func (f *fitter) matches(re jsonschema.Regexp, name string) bool {
	p, ok := re.(*pattern)
	return !ok || p.re == nil || !f.spend(p.cost(name)) || p.re.MatchString(name)
}

// property returns one schema that says what s says about its property name; nil when that is nothing.
func (f *fitter) property(s *jsonschema.Schema, name string) *jsonschema.Schema {
	return all(f.properties(s, name, 0))
}

// all is one schema in place of several.
func all(of []*jsonschema.Schema) *jsonschema.Schema {
	switch len(of) {
	case 0:
		return nil
	case 1:
		return of[0]
	}
	return &jsonschema.Schema{AllOf: of}
}

func (f *fitter) properties(s *jsonschema.Schema, name string, depth int) []*jsonschema.Schema {
	if !f.enter(s, depth) {
		return nil
	}
	out := f.here(s, name)
	if f.steps <= 0 {
		return nil
	}
	if additional, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && len(out) == 0 {
		out = append(out, additional)
	}
	for part := range together(s) {
		out = append(out, f.properties(part, name, depth+1)...)
	}
	for group := range alternatives(s) {
		var members []*jsonschema.Schema
		for _, member := range group {
			of := all(f.properties(member, name, depth+1))
			if of == nil {
				members = nil // one alternative says nothing, so the group says nothing
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

// items returns the schema of an array's elements, when there is one for all.
func (f *fitter) items(s *jsonschema.Schema) *jsonschema.Schema {
	for depth := 0; f.enter(s, depth); depth++ {
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
		for part := range together(s) {
			if only != nil {
				return nil
			}
			only = part
		}
		s = only
	}
	return nil
}

// requires reports whether s requires a property name in every case.
func (f *fitter) requires(s *jsonschema.Schema, name string, depth int) bool {
	if !f.enter(s, depth) {
		return false
	}
	if f.spend(len(s.Required)) && slices.Contains(s.Required, name) {
		return true
	}
	for part := range together(s) {
		if f.requires(part, name, depth+1) {
			return true
		}
	}
	return false
}

// forbidden reports whether no object with a property name can satisfy s.
func (f *fitter) forbidden(s *jsonschema.Schema, name string, depth int) bool {
	if never(s) {
		return true
	}
	if !f.enter(s, depth) {
		return false
	}
	here := f.here(s, name)
	if f.steps <= 0 {
		return false
	}
	if slices.ContainsFunc(here, never) {
		return true
	}
	if open, ok := s.AdditionalProperties.(bool); ok && !open && len(here) == 0 {
		return true
	}
	if never(s.UnevaluatedProperties) && !f.evaluated(s, name, depth) {
		return true
	}
	if s.PropertyNames != nil && s.PropertyNames.Enum != nil {
		names := s.PropertyNames.Enum.Values
		if f.spend(len(names)) && !slices.ContainsFunc(names, func(v any) bool { return v == name }) {
			return true
		}
	}
	for part := range together(s) {
		if f.forbidden(part, name, depth+1) {
			return true
		}
	}
	for group := range alternatives(s) {
		if !slices.ContainsFunc(group, func(member *jsonschema.Schema) bool { return !f.forbidden(member, name, depth+1) }) {
			return true
		}
	}
	return false
}

// evaluated reports whether unevaluatedProperties of s may have nothing to say about name: any part of s that may apply says something
// about it, or it could not be found out.
func (f *fitter) evaluated(s *jsonschema.Schema, name string, depth int) bool {
	if s.AdditionalProperties != nil || len(f.here(s, name)) > 0 {
		return true
	}
	inside := func(part *jsonschema.Schema) bool {
		switch {
		case part == nil:
			return false
		case !f.enter(part, depth+1):
			return true
		}
		return part.UnevaluatedProperties != nil || f.evaluated(part, name, depth+1)
	}
	for part := range together(s) {
		if inside(part) {
			return true
		}
	}
	for group := range alternatives(s) {
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

func list(v any) []any {
	l, _ := v.([]any)
	return l
}
