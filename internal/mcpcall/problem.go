package mcpcall

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// leaves appends the errors of e that have no cause of their own.
func leaves(e *jsonschema.ValidationError, to []*jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		if e.ErrorKind == nil {
			return to
		}
		return append(to, e)
	}
	for _, cause := range e.Causes {
		if cause != nil {
			to = leaves(cause, to)
		}
	}
	return to
}

// Bounds of what is told about arguments that do not fit.
const (
	maxProblems = 10  // arguments that are named
	maxLeaves   = 64  // errors that are looked at
	maxPath     = 200 // bytes of one argument's name
)

// explainInvalid names the arguments that do not fit, each with one problem, in the same order every time.
func explainInvalid(e *jsonschema.ValidationError) *SchemaError {
	all := leaves(e, nil)
	var problems []SchemaProblem
	for _, leaf := range all[:min(len(all), maxLeaves)] {
		problems = append(problems, describe(leaf)...)
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

// describe words one error; only of required arguments it can be about several.
func describe(leaf *jsonschema.ValidationError) []SchemaProblem {
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
	text := (&jsonschema.ValidationError{InstanceLocation: nil, ErrorKind: leaf.ErrorKind}).Error()
	return one(excerpt(strings.TrimPrefix(text, "at '': "), 200))
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
			token = excerpt(token, 60)
		}
		b.WriteString(token)
	}
	return excerpt(b.String(), maxPath)
}
