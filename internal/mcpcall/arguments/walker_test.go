package arguments

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// several returns n copies of item, separated by commas. In each copy, its number replaces "%".
func several(n int, item string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strings.ReplaceAll(item, "%", fmt.Sprint(i)))
	}
	return b.String()
}

// TestFitKeepsValidArguments checks that a value that the validator accepts unchanged reaches the agent
// unchanged, for schemas of every form.
func TestFitKeepsValidArguments(t *testing.T) {
	t.Parallel()
	const value = `{"properties":{"value":{}}}`
	for name, schema := range map[string]string{
		"anchor":          `{"$ref":"#args","unevaluatedProperties":false,"$defs":{"a":{"$anchor":"args","properties":{"value":{}}}}}`,
		"encoded pointer": `{"$ref":"#/$defs/a%20b","unevaluatedProperties":false,"$defs":{"a b":` + value + `}}`,
		"resource of its own": `{"$ref":"https://x.example/inner","unevaluatedProperties":false,"$defs":{"i":{"$id":"https://x.example/inner","$ref":"#/$defs/p",
			"$defs":{"p":` + value + `}}}}`,
		"beyond the depth": `{"$ref":"#/$defs/a0","unevaluatedProperties":false,"$defs":{` + chain(20, `{"$ref":"#/$defs/a%"}`) + `,"a20":` + value + `}}`,
		"beyond the steps": `{"allOf":[{"$ref":"#/$defs/a0"},` + value + `],"unevaluatedProperties":false,
			"$defs":{` + chain(3, `{"anyOf":[`+strings.Repeat(`{"$ref":"#/$defs/a%"},`, 30)+`{}]}`) + `,"a3":{}}}`,
		"names beside $ref":         `{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/o","additionalProperties":false,"definitions":{"o":{"type":"object"}}}`,
		"type beside $ref":          `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"value":{"$ref":"#/definitions/s","type":"number"}},"definitions":{"s":{"type":"string"}}}`,
		"an older revision":         `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"other":{}},"unevaluatedProperties":false}`,
		"evaluated by true":         `{"allOf":[{"unevaluatedProperties":true}],"unevaluatedProperties":false}`,
		"evaluated by a schema":     `{"anyOf":[{"unevaluatedProperties":{"type":"string"}}],"unevaluatedProperties":false}`,
		"evaluated by dependencies": `{"dependentSchemas":{"value":` + value + `},"unevaluatedProperties":false}`,
		"required by an older one":  `{"$schema":"http://json-schema.org/draft-04/schema#","dependencies":{"value":["value"]},"properties":{"value":{"type":"string"}},"additionalProperties":false}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := schemaOf(schema).Fit(map[string]any{"value": "9977"})
			if err != nil || out["value"] != "9977" {
				t.Errorf("%v, %v", out, err)
			}
		})
	}
}

// chain defines a0 to a(n-1), each of which refers to the next.
func chain(n int, item string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"a%d":%s`, i, strings.ReplaceAll(item, "%", fmt.Sprint(i+1)))
	}
	return b.String()
}

// TestFitFollowsReferences checks that anchors, encoded references and $id are resolved, so that arguments behind them
// are adapted too.
func TestFitFollowsReferences(t *testing.T) {
	t.Parallel()
	const number = `"properties":{"value":{"type":"number"}},"additionalProperties":false`
	for name, schema := range map[string]string{
		"anchor":  `{"$ref":"#args","$defs":{"a":{"$anchor":"args",` + number + `}}}`,
		"encoded": `{"$ref":"#/$defs/a%20b","$defs":{"a b":{` + number + `}}}`,
		"$id":     `{"$ref":"https://x.example/i","$defs":{"i":{"$id":"https://x.example/i",` + number + `}}}`,
	} {
		out, err := schemaOf(schema).Fit(map[string]any{"value": "9977", "deliveryId": "d"})
		heraldtest.Must(t, err)
		heraldtest.Equal(t, name, out, map[string]any{"value": json.Number("9977")})
	}
}

// TestFitTakesLargeFiles checks that the limits on cost accept an honest schema with a large file.
func TestFitTakesLargeFiles(t *testing.T) {
	t.Parallel()
	schema := `{"properties":{"file":{"items":{"required":["a","b","c","d","e","f"],"properties":{"a":{"enum":[` + several(250, `"v%"`) +
		`]},"b":{"pattern":"^[a-z0-9-]{1,64}$"},"c":{"type":"number","minimum":0}},"patternProperties":{"^[def]$":{"enum":[` + several(20, `%`) + `]}}}}}}`
	file := `[` + several(5000, `{"a":"v249","b":"name-%","c":%,"d":1,"e":2,"f":3}`) + `]`
	// The limit is longer than by default, because the race detector on a busy machine is slow.
	slow := schemaOf(schema)
	slow.budget.limit = time.Minute
	_, err := slow.Fit(map[string]any{"file": json.RawMessage(file)})
	heraldtest.Must(t, err)
}

// hostile returns schemas of a few KiB up to the limit. Each of them once made a Fit need minutes or gigabytes.
func hostile() map[string]string {
	return map[string]string{
		"patterns behind references": `{"allOf":[` + several(900, `{"$ref":"#/$defs/p"}`) + `],"$defs":{"p":{"patternProperties":{` + several(1000, `"^x%$":true`) + `}}}}`,
		"required names":             required(),
		"names by enum": `{"allOf":[` + several(60, `{"$ref":"#/$defs/b"}`) + `],"$defs":{"b":{"allOf":[` + several(60, `{"$ref":"#/$defs/n"}`) +
			`]},"n":{"propertyNames":{"enum":["value",` + several(12_000, `"n%"`) + `]}}}}`,
		"large patterns":        `{"patternProperties":{` + several(1500, `"x%(abcdefghijkl){900}":true`) + `}}`,
		"many times one":        `{"properties":{"value":{"anyOf":[` + several(1500, `{"pattern":"(abcdefghijkl){900}"}`) + `]}}}`,
		"classes":               `{"properties":{"value":{"pattern":"` + strings.Repeat(`\\pL`, 30_000) + `"}}}`,
		"enums behind items":    `{"properties":{"value":{"anyOf":[` + several(1500, `{"$ref":"#/$defs/e"}`) + `]}},"$defs":{"e":{"enum":[` + several(12_000, `1%`) + `]}}}`,
		"types of alternatives": `{"properties":{"value":{"$ref":"#/$defs/a0"}},"$defs":{` + chain(30, `{"anyOf":[{"$ref":"#/$defs/a%"},{"$ref":"#/$defs/a%"}]}`) + `,"a30":{"type":"string"}}}`,
	}
}

func required() string {
	return `{"allOf":[` + several(30, `{"$ref":"#/$defs/b"}`) + `],"$defs":{"b":{"allOf":[` + several(30, `{"$ref":"#/$defs/r"}`) + `]},"r":{"required":[` +
		several(12_000, `"n%"`) + `]}}}`
}

// TestFitIsBounded checks that a Fit uses a bounded number of steps and little memory, for every hostile schema. It is
// not parallel, because it measures allocations.
func TestFitIsBounded(t *testing.T) {
	for name, schema := range hostile() {
		if len(schema) > MaxSchemaBytes {
			t.Fatalf("%s: %d bytes", name, len(schema))
		}
		s := schemaOf(schema)
		before := allocated()
		if err := s.prepare(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		compiled := allocated()
		_, err := s.Fit(map[string]any{"value": "9977"})
		fitted := allocated()
		t.Logf("%s: compiled with %d MiB, fitted with %d MiB: %v", name, (compiled-before)>>20, (fitted-compiled)>>20, err)
		if err != nil && !errors.As(err, new(*SchemaError)) {
			t.Errorf("%s: %v", name, err)
		}
		if compiled-before > 256<<20 {
			t.Errorf("%s: %d MiB to compile it", name, (compiled-before)>>20)
		}
		if fitted-compiled > 96<<20 {
			t.Errorf("%s: %d MiB to fit one argument", name, (fitted-compiled)>>20)
		}
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestWalkerStops checks that a walk uses at most about twice its steps. Each schema, pattern, required name and
// enumerated name that it tries counts as one step.
func TestWalkerStops(t *testing.T) {
	t.Parallel()
	for name, schema := range hostile() {
		s := schemaOf(schema)
		if err := s.prepare(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f := argumentFitter{schemaWalker: schemaWalker{steps: maxWalkerSteps}}
		f.fitObject(s.compiled, map[string]any{"value": nil}) // an argument that may be omitted needs the most steps
		if taken := maxWalkerSteps - f.steps; taken > 2*maxWalkerSteps {
			t.Errorf("%s: %d steps", name, taken)
		}
	}
	for name, entries := range map[string]int{"patterns behind references": 900 * 1000, "required names": 900 * 12_000, "names by enum": 3600 * 12_000} {
		s := schemaOf(hostile()[name])
		heraldtest.Must(t, s.prepare())
		const many = 1 << 40
		w := schemaWalker{steps: many}
		w.forbidsProperty(s.compiled, "value")
		w.requiresProperty(s.compiled, "value")
		if taken := many - w.steps; taken < entries {
			t.Errorf("%s: %d steps for %d entries", name, taken, entries)
		}
	}
}

// TestPatterns checks that an expression is compiled once. An expression that is too large, or that Go's engine does
// not support, matches everything.
func TestPatterns(t *testing.T) {
	t.Parallel()
	ps := &patternCompiler{budget: &budget{}, room: maxPatternSize, known: map[string]*pattern{}}
	compile := func(text string) *pattern {
		re, err := ps.compile(text)
		heraldtest.Must(t, err)
		return re.(*pattern)
	}
	ps.budget.startValidation()
	p := compile(`^0x[0-9a-f]{64}$`)
	if p.MatchString("0x12") || p != compile(`^0x[0-9a-f]{64}$`) || ps.budget.left >= maxEvaluations {
		t.Errorf("%+v, %d left", p, ps.budget.left)
	}
	for _, text := range []string{`(?!x)y`, `((abcdefghijklmnopqrstuvwxyz){100}){10}`} {
		if p := compile(text); p.re != nil || !p.MatchString("") {
			t.Errorf("%s: %+v", text, p)
		}
	}
	if p := compile(`^a+$`); p.re != nil {
		t.Errorf("there was room left: %d", ps.room)
	}
}
