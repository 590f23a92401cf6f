package arguments

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/agentherald/herald/internal/text"
)

// SchemaError: arguments do not fit the tool's input schema, or the schema cannot be used.
type SchemaError struct {
	Path    string // the argument, like "value" or "fileContent.items[2]"; "" is the arguments as a whole or the schema itself
	Problem string

	Others []SchemaProblem // that do not fit either, in the order of their paths, at most maxProblems-1
	More   int             // how many do not fit beside all these
}

// SchemaProblem is one argument that does not fit.
type SchemaProblem struct{ Path, Problem string }

func (e *SchemaError) Error() string {
	if e.Path == "" && len(e.Others) == 0 {
		return "the tool's input schema: " + e.Problem
	}
	var b strings.Builder
	b.WriteString("the tool's input schema refuses ")
	for i, p := range append([]SchemaProblem{{e.Path, e.Problem}}, e.Others...) {
		if i > 0 {
			b.WriteString("; ")
		}
		if p.Path == "" {
			p.Path = "the arguments"
		}
		b.WriteString(p.Path + ": " + p.Problem)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "; and %d more", e.More)
	}
	return b.String()
}

// leafErrors appends the errors of e that have no cause of their own.
func leafErrors(e *jsonschema.ValidationError, to []*jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		if e.ErrorKind == nil {
			return to
		}
		return append(to, e)
	}
	for _, cause := range e.Causes {
		if cause != nil {
			to = leafErrors(cause, to)
		}
	}
	return to
}

// Bounds of a SchemaError.
const (
	maxProblems = 10  // arguments that are named
	maxLeaves   = 64  // errors of the validator that are read
	maxPath     = 200 // bytes of one argument's name
)

// explainInvalid names the arguments that do not fit, each with one problem, in the same order every time.
func explainInvalid(e *jsonschema.ValidationError) *SchemaError {
	all := leafErrors(e, nil)
	var problems []SchemaProblem
	for _, leaf := range all[:min(len(all), maxLeaves)] {
		problems = append(problems, describeLeaf(leaf)...)
	}
	if len(problems) == 0 {
		return &SchemaError{Problem: "the arguments do not fit"}
	}
	slices.SortFunc(problems, func(a, b SchemaProblem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Problem, b.Problem))
	})
	problems = slices.CompactFunc(problems, func(a, b SchemaProblem) bool { return a.Path == b.Path }) // of alternatives the first
	told := problems[:min(len(problems), maxProblems)]
	return &SchemaError{Path: told[0].Path, Problem: told[0].Problem, Others: told[1:], More: len(problems) - len(told)}
}

// describeLeaf describes one error of the validator. Only missing arguments can be several in one error.
func describeLeaf(leaf *jsonschema.ValidationError) []SchemaProblem {
	location := leaf.InstanceLocation
	one := func(problem string) []SchemaProblem { return []SchemaProblem{{instancePath(location), problem}} }
	switch k := leaf.ErrorKind.(type) {
	case *kind.Required:
		var out []SchemaProblem
		for _, name := range k.Missing[:min(len(k.Missing), maxLeaves)] {
			path := instancePath(append(slices.Clone(location), name))
			out = append(out, SchemaProblem{path, "it is required, and there is no value for it"})
		}
		if len(out) > 0 {
			return out
		}
	case *kind.Type:
		return one(fmt.Sprintf("it must be %s, and is %s", strings.Join(k.Want, " or "), k.Got))
	case *kind.FalseSchema:
		return one("it is not allowed")
	}
	problem := (&jsonschema.ValidationError{InstanceLocation: nil, ErrorKind: leaf.ErrorKind}).Error()
	return one(text.Excerpt(strings.TrimPrefix(problem, "at '': "), 200))
}

// instancePath writes a location as job.Refusal does: a.b[0].
func instancePath(location []string) string {
	var b strings.Builder
	for i, token := range location {
		if _, err := strconv.Atoi(token); err == nil && i > 0 {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		if !utf8.ValidString(token) || len(token) > 60 {
			token = text.Excerpt(token, 60)
		}
		b.WriteString(token)
	}
	return text.Excerpt(b.String(), maxPath)
}
