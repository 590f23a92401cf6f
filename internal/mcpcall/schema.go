package mcpcall

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of a schema that a stranger wrote, and of one validation against it.
const (
	maxSchemaDepth   = 64
	maxSchemaObjects = 2000 // subschemas and what is beside them; compiling is quadratic in their number
	maxExponent      = 400  // of a number: the validator computes with exact fractions
	maxDigits        = 1000
	maxEvaluations   = 1_000_000 // schema × value pairs, large values counting more
	maxValidation    = 2 * time.Second
)

// schemaURL is where the compiler believes the schema to be. Nothing is ever loaded: see noLoader.
const schemaURL = "https://schema.invalid/input"

// inputSchema compiles a tool's input schema on first use and validates against it, one validation at a time: the budget belongs
// to the compiled schema, and one agent has few calls in flight.
type inputSchema struct {
	tooLarge      bool
	prepared      func()       // is called when compiledBytes is known; nil for a schema that no list has
	compiledBytes atomic.Int64 // about what the compiled schema holds

	once     sync.Once
	compiled *jsonschema.Schema // nil when the tool has no schema, or one that takes anything
	err      error

	mu     sync.Mutex
	budget budget
}

// prepare compiles raw once. A nil error with a nil compiled schema means that anything fits.
func (s *inputSchema) prepare(raw json.RawMessage) error {
	s.once.Do(func() {
		if s.tooLarge || len(raw) > maxSchemaBytes {
			s.err = &SchemaError{Problem: fmt.Sprintf("it is longer than %d bytes", maxSchemaBytes)}
			return
		}
		if len(raw) == 0 {
			return
		}
		if problem := s.compile(raw); problem != "" {
			s.err = &SchemaError{Problem: problem}
			return
		}
		if s.prepared != nil {
			s.prepared()
		}
	})
	return s.err
}

func (s *inputSchema) compile(raw json.RawMessage) (problem string) {
	if why := bounded(raw, maxSchemaDepth, maxSchemaObjects); why != "" {
		return "it " + why
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return "it is not JSON"
	}
	root, ok := doc.(map[string]any)
	if !ok {
		if b, isBool := doc.(bool); isBool && b {
			return ""
		}
		return "it is not a JSON object"
	}
	if dialect, ok := root["$schema"].(string); ok && !knownDialect(dialect) {
		delete(root, "$schema") // an unknown dialect is read as 2020-12 rather than refused
	}

	// A schema can be written to make a validator's author look bad; it must not stop the worker.
	defer func() {
		if recover() != nil {
			problem = "it cannot be compiled"
		}
	}()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	expressions := &patterns{budget: &s.budget, room: maxPatternSize, known: map[string]*pattern{}}
	c.UseRegexpEngine(expressions.compile)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return "it cannot be compiled"
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return compileProblem(err)
	}
	parts := map[*jsonschema.Schema]bool{}
	if !s.budget.attach(compiled, parts) {
		return "it uses $dynamicRef or $recursiveRef, which are not followed here"
	}
	s.compiled = compiled
	s.compiledBytes.Store(int64(4<<10 + 8*len(raw) + 1<<10*len(parts) + 64*(maxPatternSize-max(0, expressions.room)))) // as measured
	return ""
}

func compileProblem(err error) string {
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		return fmt.Sprintf("it refers to %s, and other documents are not loaded", excerpt(load.URL, 120))
	}
	var invalid *jsonschema.SchemaValidationError
	if errors.As(err, &invalid) {
		var v *jsonschema.ValidationError
		if errors.As(invalid.Err, &v) {
			first := explainInvalid(v)
			return fmt.Sprintf("it is no valid JSON Schema: %s: %s", first.Path, first.Problem)
		}
		return "it is no valid JSON Schema"
	}
	return "it cannot be compiled: " + excerpt(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)
}

// validate returns nil, a *jsonschema.ValidationError, or a *SchemaError when the validation cost too much.
func (s *inputSchema) validate(instance any) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if recover() != nil { // a fault of the validator's, over a schema that a stranger wrote
			err = &SchemaError{Problem: "the arguments cannot be checked against it"}
		}
	}()
	s.budget.start()
	err = s.compiled.Validate(instance)
	if s.budget.spent {
		return &SchemaError{Problem: "checking the arguments against it takes too long"}
	}
	return err
}

// errBudget ends the evaluation of one schema; the validator does not look further into the value then.
var errBudget = errors.New("validation budget spent")

// budget counts the evaluations of one validation. The validator has no limit of its own, and a schema of a few lines can make it
// work for years (allOf of two references, thirty levels deep). Once the budget is spent, every further evaluation fails at once.
type budget struct {
	left     int
	spent    bool
	deadline time.Time
	patience time.Duration // 0: maxValidation
}

func (b *budget) start() {
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

// spend returns what is called as the "format" of s, which the validator looks at before it goes into a value.
func (b *budget) spend(s *jsonschema.Schema) func(v any) error {
	w := weigh(s)
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

func weigh(s *jsonschema.Schema) weight {
	w := weight{names: len(s.Required)}
	for _, names := range s.DependentRequired {
		w.names += len(names)
	}
	for _, d := range s.Dependencies {
		if names, ok := d.([]string); ok {
			w.names += len(names)
		}
	}
	once, each := subschemas(s)
	w.once, w.each = enums(once), enums(each)
	return w
}

// enums is what it costs to go through the enums of schemas.
func enums(of []*jsonschema.Schema) int {
	n := 0
	for _, s := range of {
		if s != nil && s.Enum != nil {
			n += len(s.Enum.Values)
		}
	}
	return n >> 4
}

// attach puts the budget into every schema reachable from s, in place of its format: formats are annotations here, the agent knows
// best what it takes for a URI. It returns false for references that only an evaluation can resolve.
func (b *budget) attach(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) bool {
	if s == nil || seen[s] {
		return true
	}
	seen[s] = true
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return false
	}
	s.Format = &jsonschema.Format{Name: "budget", Validate: b.spend(s)}
	once, each := subschemas(s)
	for _, sub := range append(once, each...) {
		if !b.attach(sub, seen) {
			return false
		}
	}
	return true
}

// subschemas returns the schemas right inside s, some of them nil: those that apply to a value or to one part of it, and those that
// apply to each of its parts.
func subschemas(s *jsonschema.Schema) (once, each []*jsonschema.Schema) {
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

// noLoader refuses every document that the schema does not contain itself, so that no schema makes this machine fetch anything.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errors.New("other documents are not loaded") }

func knownDialect(url string) bool {
	url = strings.TrimSuffix(url, "#")
	url = strings.TrimPrefix(strings.TrimPrefix(url, "https:"), "http:")
	switch url {
	case "//json-schema.org/schema", "//json-schema.org/draft/2020-12/schema", "//json-schema.org/draft/2019-09/schema",
		"//json-schema.org/draft-07/schema", "//json-schema.org/draft-06/schema", "//json-schema.org/draft-04/schema":
		return true
	}
	return false
}

// bounded says why raw JSON is too much to be looked at, or nothing. It does not recurse.
func bounded(raw []byte, maxDepth, maxObjects int) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	depth, objects := 0, 0
	for {
		token, err := dec.Token()
		if err != nil {
			return "" // the end, or not JSON, which the parser will say
		}
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{', '[':
				depth++
				objects++
			default:
				depth--
			}
			if depth > maxDepth {
				return fmt.Sprintf("is nested deeper than %d", maxDepth)
			}
			if objects > maxObjects {
				return fmt.Sprintf("has more than %d parts", maxObjects)
			}
		case bool:
			objects++ // a boolean can be a schema
			if objects > maxObjects {
				return fmt.Sprintf("has more than %d parts", maxObjects)
			}
		case json.Number:
			if hugeNumber(string(t)) {
				return "has a number with too many digits"
			}
		}
	}
}

// hugeNumber: exact arithmetic with it would take memory in proportion to its value.
func hugeNumber(n string) bool {
	if len(n) > maxDigits {
		return true
	}
	i := strings.IndexAny(n, "eE")
	if i < 0 {
		return false
	}
	exp, err := strconv.Atoi(n[i+1:])
	return err != nil || exp > maxExponent || exp < -maxExponent
}
