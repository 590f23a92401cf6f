package arguments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentherald/herald/internal/base/text"
)

// Bounds of a schema from an untrusted party, and of one validation against it.
const (
	MaxSchemaBytes = 128 << 10
	maxSchemaDepth = 64
	// maxSchemaObjects bounds objects, arrays and booleans. Compile time grows with the square of their number.
	maxSchemaObjects = 2000
	maxExponent      = 400 // of a number: the validator computes with exact fractions
	maxDigits        = 1000
	maxEvaluations   = 1_000_000 // pairs of schema and value; large values count more
	maxValidation    = 2 * time.Second
)

// schemaURL is the base URL that the compiler gets for the schema. noLoader makes sure that nothing is loaded.
const schemaURL = "https://schema.invalid/input"

// Schema is the input schema of one tool. It compiles on first use. It runs one validation at a time, because the
// budget is part of the compiled schema; this suffices, because an agent has few calls in flight.
type Schema struct {
	raw      json.RawMessage // as the agent sent it; nil if there was none
	tooLarge bool            // longer than MaxSchemaBytes, and therefore not kept

	onCompiled func() // called when Size has grown
	size       atomic.Int64

	once     sync.Once
	compiled *jsonschema.Schema // nil if the tool has no schema, or one that allows everything
	err      error

	mu     sync.Mutex // one validation at a time
	budget budget
}

// NewSchema returns a Schema that keeps raw, the schema as the agent sent it. onCompiled is called after the schema was
// compiled; it may be nil.
func NewSchema(raw json.RawMessage, onCompiled func()) *Schema {
	if len(raw) > MaxSchemaBytes {
		return &Schema{tooLarge: true}
	}
	return &Schema{raw: raw, onCompiled: onCompiled}
}

// Raw returns the schema as the agent sent it; nil if it is missing or too large.
func (s *Schema) Raw() json.RawMessage { return s.raw }

// Equal reports whether the agent sent the same schema for both.
func (s *Schema) Equal(other *Schema) bool {
	return s.tooLarge == other.tooLarge && bytes.Equal(s.raw, other.raw)
}

// Size returns the approximate memory of the compiled schema, in bytes; 0 before it is compiled.
func (s *Schema) Size() int64 { return s.size.Load() }

// prepare compiles the schema once. If it returns nil and the compiled schema is nil, any arguments fit.
func (s *Schema) prepare() error {
	s.once.Do(func() {
		switch {
		case s.tooLarge:
			s.err = &SchemaError{Problem: fmt.Sprintf("it is longer than %d bytes", MaxSchemaBytes)}
			return
		case len(s.raw) == 0:
			return
		}
		if problem := s.compile(); problem != "" {
			s.err = &SchemaError{Problem: problem}
			return
		}
		if s.onCompiled != nil {
			s.onCompiled()
		}
	})
	return s.err
}

// compile compiles the schema and attaches the budget. It returns a description of the problem, or "".
func (s *Schema) compile() (problem string) {
	if why := describeExcess(s.raw, maxSchemaDepth, maxSchemaObjects); why != "" {
		return "it " + why
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.raw))
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
	if dialect, ok := root["$schema"].(string); ok && !isKnownDialect(dialect) {
		delete(root, "$schema") // an unknown dialect is read as 2020-12 instead of being refused
	}

	// A schema that makes the compiler panic must not crash the worker.
	defer func() {
		if recover() != nil {
			problem = "it cannot be compiled"
		}
	}()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat() // attachTo reads the formats of all revisions, and then disables them
	c.UseLoader(noLoader{})
	expressions := &patternCompiler{budget: &s.budget, room: maxPatternSize, known: map[string]*pattern{}}
	c.UseRegexpEngine(expressions.compile)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return "it cannot be compiled"
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return describeCompileError(err)
	}
	parts := map[*jsonschema.Schema]bool{}
	if !s.budget.attachTo(compiled, parts) {
		return "it uses $dynamicRef or $recursiveRef, which are not followed here"
	}
	s.compiled = compiled
	// Measured: the memory that the compiler keeps for the text, for each part and for the instructions of each
	// expression.
	s.size.Store(int64(4<<10 + 8*len(s.raw) + 1<<10*len(parts) + 64*(maxPatternSize-max(0, expressions.room))))
	return ""
}

// describeCompileError describes why a schema cannot be compiled, in one clause.
func describeCompileError(err error) string {
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return fmt.Sprintf("it refers to %s, and other documents are not loaded", text.Excerpt(load.URL, 120))
	}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if v, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			first := explainInvalid(v)
			return fmt.Sprintf("it is no valid JSON Schema: %s: %s", first.Path, first.Problem)
		}
		return "it is no valid JSON Schema"
	}
	return "it cannot be compiled: " + text.Excerpt(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)
}

// validate returns nil, a *jsonschema.ValidationError, or a *SchemaError if the validation exceeded its budget.
func (s *Schema) validate(instance any) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		// The validator may panic on a schema from an untrusted party.
		if recover() != nil {
			err = &SchemaError{Problem: "the arguments cannot be checked against it"}
		}
	}()
	s.budget.startValidation()
	err = s.compiled.Validate(instance)
	if s.budget.spent {
		return &SchemaError{Problem: "checking the arguments against it takes too long"}
	}
	return err
}

// noLoader refuses to load any document, so that no schema makes this machine fetch one.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errors.New("other documents are not loaded") }

func isKnownDialect(url string) bool {
	url = strings.TrimSuffix(url, "#")
	url = strings.TrimPrefix(strings.TrimPrefix(url, "https:"), "http:")
	switch url {
	case "//json-schema.org/schema", "//json-schema.org/draft/2020-12/schema", "//json-schema.org/draft/2019-09/schema",
		"//json-schema.org/draft-07/schema", "//json-schema.org/draft-06/schema", "//json-schema.org/draft-04/schema":
		return true
	}
	return false
}

// describeExcess returns why raw JSON is too large to be processed, or "". It does not recurse.
func describeExcess(raw []byte, maxDepth, maxObjects int) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	depth, objects := 0, 0
	for {
		token, err := dec.Token()
		if err != nil {
			return "" // the end, or invalid JSON, which the parser reports later
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
			if isHugeNumber(string(t)) {
				return "has a number with too many digits"
			}
		}
	}
}

// isHugeNumber reports whether exact arithmetic with n would take too much memory: it grows with the magnitude of n.
func isHugeNumber(n string) bool {
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
