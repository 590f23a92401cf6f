package mcpcall

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// fitter looks at a decoded schema. It under-reads what it does not understand: then nothing is adapted and validation decides.
type fitter struct {
	root  any
	steps int
}

func (f *fitter) step() bool {
	f.steps--
	return f.steps > 0
}

// local follows a reference inside the schema.
func (f *fitter) local(ref string) any {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok || pointer != "" && pointer[0] != '/' {
		return nil
	}
	at := f.root
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			at = v[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return nil
			}
			at = v[i]
		default:
			return nil
		}
	}
	return at
}

const maxFitDepth = 16 // of references and combinators inside each other

// together returns the schemas that apply to the same value as node besides node itself: the target of $ref, the members of allOf.
func (f *fitter) together(node map[string]any) []any {
	var out []any
	if ref, ok := node["$ref"].(string); ok {
		if target := f.local(ref); target != nil {
			out = append(out, target)
		}
	}
	return append(out, list(node["allOf"])...)
}

// alternatives returns the groups of which one member applies.
func alternatives(node map[string]any) [][]any {
	var out [][]any
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if group := list(node[keyword]); len(group) > 0 {
			out = append(out, group)
		}
	}
	return out
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// types returns the types that schema lets through.
func (f *fitter) types(schema any, depth int) types {
	if b, ok := schema.(bool); ok && !b {
		return 0
	}
	node, ok := schema.(map[string]any)
	if !ok || depth > maxFitDepth || !f.step() {
		return typeAny
	}
	t := typeAny
	switch named := node["type"].(type) {
	case string:
		t = typeNames[named]
	case []any:
		t = 0
		for _, n := range named {
			s, _ := n.(string)
			t |= typeNames[s]
		}
	}
	if c, ok := node["const"]; ok {
		t &= typeOf(c)
	}
	if enum := list(node["enum"]); len(enum) > 0 {
		var of types
		for _, v := range enum {
			of |= typeOf(v)
		}
		t &= of
	}
	for _, s := range f.together(node) {
		t &= f.types(s, depth+1)
	}
	for _, group := range alternatives(node) {
		var of types
		for _, s := range group {
			of |= f.types(s, depth+1)
		}
		t &= of
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

// property returns one schema that says what schema says about its property name; nil when that is nothing.
func (f *fitter) property(schema any, name string) any {
	all := f.properties(schema, name, 0)
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return map[string]any{"allOf": all}
}

func (f *fitter) properties(schema any, name string, depth int) []any {
	node, ok := schema.(map[string]any)
	if !ok || depth > maxFitDepth || !f.step() {
		return nil
	}
	var out []any
	declared := false
	if properties, ok := node["properties"].(map[string]any); ok {
		if s, ok := properties[name]; ok {
			out, declared = append(out, s), true
		}
	}
	if patterns, ok := node["patternProperties"].(map[string]any); ok {
		for pattern, s := range patterns {
			if matches(pattern, name) {
				out, declared = append(out, s), true
			}
		}
	}
	if additional, ok := node["additionalProperties"].(map[string]any); ok && !declared {
		out = append(out, additional)
	}
	for _, s := range f.together(node) {
		out = append(out, f.properties(s, name, depth+1)...)
	}
	for _, group := range alternatives(node) {
		var members []any
		for _, s := range group {
			of := f.properties(s, name, depth+1)
			if len(of) == 0 {
				members = nil // one alternative says nothing, so the group says nothing
				break
			}
			members = append(members, map[string]any{"allOf": of})
		}
		if members != nil {
			out = append(out, map[string]any{"anyOf": members})
		}
	}
	return out
}

// items returns the schema of an array's elements, when there is one for all.
func (f *fitter) items(schema any) any {
	for range maxFitDepth {
		node, ok := schema.(map[string]any)
		if !ok {
			return nil
		}
		if items, ok := node["items"]; ok {
			if _, tuple := items.([]any); tuple || node["prefixItems"] != nil {
				return nil
			}
			return items
		}
		more := f.together(node)
		if len(more) != 1 {
			return nil
		}
		schema = more[0]
	}
	return nil
}

// required returns the names that schema requires in every case.
func (f *fitter) required(schema any, depth int) []string {
	node, ok := schema.(map[string]any)
	if !ok || depth > maxFitDepth || !f.step() {
		return nil
	}
	var out []string
	for _, name := range list(node["required"]) {
		if s, ok := name.(string); ok {
			out = append(out, s)
		}
	}
	for _, s := range f.together(node) {
		out = append(out, f.required(s, depth+1)...)
	}
	return out
}

// forbidden reports whether no object with a property name can satisfy schema.
func (f *fitter) forbidden(schema any, name string, depth int) bool {
	if b, ok := schema.(bool); ok {
		return !b
	}
	node, ok := schema.(map[string]any)
	if !ok || depth > maxFitDepth || !f.step() {
		return false
	}
	here := f.here(node, name)
	for _, s := range here {
		if b, ok := s.(bool); ok && !b {
			return true
		}
	}
	if b, ok := node["additionalProperties"].(bool); ok && !b && len(here) == 0 {
		return true
	}
	if b, ok := node["unevaluatedProperties"].(bool); ok && !b && !f.evaluated(node, name, depth) {
		return true
	}
	if names, ok := node["propertyNames"].(map[string]any); ok {
		if enum := list(names["enum"]); len(enum) > 0 && !slices.ContainsFunc(enum, func(v any) bool { return v == name }) {
			return true
		}
	}
	for _, s := range f.together(node) {
		if f.forbidden(s, name, depth+1) {
			return true
		}
	}
	for _, group := range alternatives(node) {
		if !slices.ContainsFunc(group, func(s any) bool { return !f.forbidden(s, name, depth+1) }) {
			return true
		}
	}
	return false
}

// here returns what properties and patternProperties of node itself say about name.
func (f *fitter) here(node map[string]any, name string) []any {
	var out []any
	if properties, ok := node["properties"].(map[string]any); ok {
		if s, ok := properties[name]; ok {
			out = append(out, s)
		}
	}
	if patterns, ok := node["patternProperties"].(map[string]any); ok {
		for pattern, s := range patterns {
			if matches(pattern, name) {
				out = append(out, s)
			}
		}
	}
	return out
}

// evaluated reports whether any part of schema that may apply says something about name, which unevaluatedProperties asks.
func (f *fitter) evaluated(schema any, name string, depth int) bool {
	node, ok := schema.(map[string]any)
	if !ok || depth > maxFitDepth || !f.step() {
		return false
	}
	if len(f.here(node, name)) > 0 {
		return true
	}
	if _, ok := node["additionalProperties"]; ok {
		return true
	}
	parts := f.together(node)
	for _, group := range alternatives(node) {
		parts = append(parts, group...)
	}
	parts = append(parts, node["if"], node["then"], node["else"])
	if dependent, ok := node["dependentSchemas"].(map[string]any); ok {
		for _, s := range dependent {
			parts = append(parts, s)
		}
	}
	return slices.ContainsFunc(parts, func(s any) bool { return f.evaluated(s, name, depth+1) })
}

func matches(pattern, name string) bool {
	re, err := regexp.Compile(pattern)
	return err != nil || re.MatchString(name)
}
