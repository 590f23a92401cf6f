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

	"github.com/agentherald/herald/internal/base/text"
)

// SchemaError reports that arguments do not fit the tool's input schema, or that the schema is unusable.
type SchemaError struct {
	// Path is the argument, such as "value" or "fileContent.items[2]". "" means all arguments, or the schema itself.
	Path    string
	Problem string

	Others []SchemaProblem // further arguments that do not fit, sorted by path; at most maxProblems-1
	More   int             // number of arguments that do not fit and are not listed
}

// SchemaProblem describes one argument that does not fit.
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

// leafErrors appends to the list to those errors of e that have no cause.
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
	maxProblems = 10  // arguments that are listed
	maxLeaves   = 64  // validator errors that are evaluated
	maxPath     = 200 // bytes of one argument's path
)

// explainInvalid lists the arguments that do not fit, with one problem each, in a stable order.
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
	// Keep the first problem of each path.
	problems = slices.CompactFunc(problems, func(a, b SchemaProblem) bool { return a.Path == b.Path })
	listed := problems[:min(len(problems), maxProblems)]
	return &SchemaError{Path: listed[0].Path, Problem: listed[0].Problem, Others: listed[1:],
		More: len(problems) - len(listed)}
}

// describeLeaf describes one error of the validator. Only an error about missing properties can yield several problems.
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
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties) // the validator lists them in random order
	}
	problem := (&jsonschema.ValidationError{InstanceLocation: nil, ErrorKind: leaf.ErrorKind}).Error()
	return one(text.Excerpt(strings.TrimPrefix(problem, "at '': "), 200))
}

// instancePath formats a location as job.Refusal does: a.b[0].
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
