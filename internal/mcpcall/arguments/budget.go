package arguments

import (
	"cmp"
	"errors"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// errBudget stops the evaluation of a schema. The validator does not descend further into the value after it.
var errBudget = errors.New("validation budget spent")

// budget counts the evaluations of one validation. The validator has no limit of its own, and a schema of a few lines
// can keep it busy for years (allOf with two references, nested thirty levels). Once the budget is used up, every
// further evaluation fails at once.
type budget struct {
	left     int
	spent    bool
	deadline time.Time
	limit    time.Duration // 0: maxValidation; tests set more
}

func (b *budget) startValidation() {
	b.left, b.spent = maxEvaluations, false
	b.deadline = time.Now().Add(cmp.Or(b.limit, maxValidation))
}

// charge subtracts n evaluations and reports whether the budget still allows more. It checks the deadline once per 256
// evaluations.
func (b *budget) charge(n int) bool {
	before := b.left >> 8
	b.left -= n
	if b.left < 0 || b.left>>8 != before && time.Now().After(b.deadline) {
		b.spent = true
	}
	return !b.spent
}

// chargeFor returns the function that is installed as the "format" of s. The validator calls a format before it
// descends into a value.
func (b *budget) chargeFor(s *jsonschema.Schema) func(v any) error {
	w := weighSchema(s)
	return func(v any) error {
		n := 1 + w.once
		switch v := v.(type) {
		case string:
			n += len(v) >> 6
		case []any:
			n += len(v)>>3 + len(v)*w.each
		case map[string]any:
			n += len(v)>>3 + len(v)*w.each + w.names
		}
		if !b.charge(n) {
			return errBudget
		}
		return nil
	}
}

// weight is the cost of evaluating a schema beyond the one step that each evaluation costs.
type weight struct {
	names int // number of required names: the validator's error lists each missing one
	// once and each are the sizes of the enums directly inside the schema. The validator compares with them before it
	// calls their format: once for the value, or for each of its parts.
	once, each int
}

// weighSchema computes the weight of s once, before any validation.
func weighSchema(s *jsonschema.Schema) weight {
	w := weight{names: len(s.Required)}
	for _, names := range s.DependentRequired {
		w.names += len(names)
	}
	for _, d := range s.Dependencies {
		if names, ok := d.([]string); ok {
			w.names += len(names)
		}
	}
	once, each := directSubschemas(s)
	w.once, w.each = enumCost(once), enumCost(each)
	return w
}

// enumCost returns the cost of comparing a value with the enums of schemas.
func enumCost(of []*jsonschema.Schema) int {
	n := 0
	for _, s := range of {
		if s != nil && s.Enum != nil {
			n += len(s.Enum.Values)
		}
	}
	return n >> 4
}

// formatNotEmpty is the Name of the installed format of a schema whose own format accepts no empty string, such as uri.
const formatNotEmpty = "not empty"

// attachTo installs the budget as the format of every schema reachable from s. This disables formats, which are
// annotations here: the agent decides which URIs it accepts. The Name states whether the format accepts the empty
// string. attachTo returns false for references that only an evaluation can resolve.
func (b *budget) attachTo(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) bool {
	if s == nil || seen[s] {
		return true
	}
	seen[s] = true
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return false
	}
	name := "budget"
	if s.Format != nil && s.Format.Validate("") != nil {
		name = formatNotEmpty
	}
	s.Format = &jsonschema.Format{Name: name, Validate: b.chargeFor(s)}
	once, each := directSubschemas(s)
	for _, sub := range append(once, each...) {
		if !b.attachTo(sub, seen) {
			return false
		}
	}
	return true
}

// directSubschemas returns the schemas directly inside s, some of them nil. The schemas in once apply to the value or
// to one part of it; those in each apply to every part of it.
func directSubschemas(s *jsonschema.Schema) (once, each []*jsonschema.Schema) {
	once = []*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else, s.ContentSchema}
	each = []*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems}
	for _, list := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems} {
		once = append(once, list...)
	}
	for _, p := range s.Properties {
		once = append(once, p)
	}
	for _, p := range s.DependentSchemas {
		once = append(once, p)
	}
	for _, d := range s.Dependencies {
		if p, ok := d.(*jsonschema.Schema); ok {
			once = append(once, p)
		}
	}
	for _, p := range s.PatternProperties {
		each = append(each, p)
	}
	for _, v := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch v := v.(type) {
		case *jsonschema.Schema:
			each = append(each, v)
		case []*jsonschema.Schema: // items as a list: one schema per position
			once = append(once, v...)
		}
	}
	return once, each
}
