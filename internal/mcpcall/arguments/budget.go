package arguments

import (
	"cmp"
	"errors"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// errBudget ends the evaluation of one schema; the validator does not look further into the value then.
var errBudget = errors.New("validation budget spent")

// budget counts the evaluations of one validation. The validator has no limit of its own, and a schema of a few lines
// can make it work for years (allOf of two references, thirty levels deep). Once the budget is spent, every further
// evaluation fails at once.
type budget struct {
	left     int
	spent    bool
	deadline time.Time
	patience time.Duration // 0: maxValidation
}

func (b *budget) startValidation() {
	b.left, b.spent = maxEvaluations, false
	b.deadline = time.Now().Add(cmp.Or(b.patience, maxValidation))
}

// charge takes n evaluations and reports whether there are more.
func (b *budget) charge(n int) bool {
	before := b.left >> 8
	b.left -= n
	if b.left < 0 || b.left>>8 != before && time.Now().After(b.deadline) {
		b.spent = true
	}
	return !b.spent
}

// chargeFor returns what is called as the "format" of s, which the validator looks at before it goes into a value.
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

// weight is what an evaluation of a schema costs beyond a step.
type weight struct {
	names      int // that it requires: an error remembers each that is missing
	once, each int // enums right inside it, which the validator goes through before their format: for the value, for each of its parts
}

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

// enumCost is what it costs to go through the enums of schemas.
func enumCost(of []*jsonschema.Schema) int {
	n := 0
	for _, s := range of {
		if s != nil && s.Enum != nil {
			n += len(s.Enum.Values)
		}
	}
	return n >> 4
}

// attachTo puts the budget into every schema reachable from s, in place of its format: formats are annotations here,
// the agent knows best what it takes for a URI. It returns false for references that only an evaluation can resolve.
func (b *budget) attachTo(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) bool {
	if s == nil || seen[s] {
		return true
	}
	seen[s] = true
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return false
	}
	s.Format = &jsonschema.Format{Name: "budget", Validate: b.chargeFor(s)}
	once, each := directSubschemas(s)
	for _, sub := range append(once, each...) {
		if !b.attachTo(sub, seen) {
			return false
		}
	}
	return true
}

// directSubschemas returns the schemas right inside s, some of them nil: those that apply to a value or to one part of
// it, and those that apply to each of its parts.
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
		case []*jsonschema.Schema: // items one by one
			once = append(once, v...)
		}
	}
	return once, each
}
