package mcpcall

import (
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

// firstProblem picks one error to tell, the same one every time, and words it.
func firstProblem(e *jsonschema.ValidationError) (path, problem string) {
	all := leaves(e, nil)
	type told struct{ path, problem string }
	problems := make([]told, 0, len(all))
	for _, leaf := range all[:min(len(all), 64)] {
		p, why := describe(leaf)
		problems = append(problems, told{p, why})
	}
	if len(problems) == 0 {
		return "", "the arguments do not fit"
	}
	slices.SortFunc(problems, func(a, b told) int {
		if c := strings.Compare(a.path, b.path); c != 0 {
			return c
		}
		return strings.Compare(a.problem, b.problem)
	})
	return problems[0].path, problems[0].problem
}

func describe(leaf *jsonschema.ValidationError) (path, problem string) {
	location := leaf.InstanceLocation
	switch k := leaf.ErrorKind.(type) {
	case *kind.Required:
		missing := slices.Sorted(slices.Values(k.Missing))
		if len(missing) > 0 {
			return instancePath(append(slices.Clone(location), missing[0])), "it is required, and there is no value for it"
		}
	case *kind.Type:
		return instancePath(location), fmt.Sprintf("it must be %s, and is %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.FalseSchema:
		return instancePath(location), "it is not allowed"
	}
	text := (&jsonschema.ValidationError{InstanceLocation: nil, ErrorKind: leaf.ErrorKind}).Error()
	return instancePath(location), excerpt(strings.TrimPrefix(text, "at '': "), 300)
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
	return b.String()
}
