package arguments

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func schemaOf(text string) *Schema { return NewSchema(json.RawMessage(text), nil) }

func decimal(unscaled int64, decimals uint8) job.Decimal {
	return job.Decimal{Unscaled: big.NewInt(unscaled), Decimals: decimals}
}

func TestFit(t *testing.T) {
	t.Parallel()
	args := map[string]any{
		"score": decimal(9977, 2), "value": "9977", "feedbackIndex": json.Number("7"), "agentId": "42", "tag1": "uptime", "tag2": "",
		"fileContent": nil, "deliveryId": "d",
	}
	with := func(change map[string]any) map[string]any {
		m := maps.Clone(args)
		maps.Copy(m, change)
		return m
	}
	tests := []struct {
		name, schema string
		args         map[string]any
		want         map[string]any // only these are compared; nil value: must be absent
		path         string         // of the SchemaError; "-" means the whole value
	}{
		{name: "no schema", schema: ``, want: map[string]any{"score": json.Number("99.77"), "value": "9977"}},
		{name: "anything", schema: `{"type":"object"}`, want: map[string]any{"score": json.Number("99.77"), "deliveryId": "d"}},
		{name: "true", schema: `true`, want: map[string]any{"value": "9977"}},
		{name: "required in each alternative", schema: `{"properties":{"fileContent":{"type":"string"}},"anyOf":[{"required":["fileContent"]},{"required":["fileContent","value"]}]}`, want: map[string]any{"fileContent": ""}},
		{name: "score integer", schema: `{"properties":{"score":{"type":"integer"}}}`, want: map[string]any{"score": json.Number("100")}},
		{name: "score integer or null", schema: `{"properties":{"score":{"type":["integer","null"]}}}`, want: map[string]any{"score": json.Number("100")}},
		{name: "score number by anyOf", schema: `{"properties":{"score":{"anyOf":[{"type":"number"},{"type":"null"}]}}}`, want: map[string]any{"score": json.Number("99.77")}},
		{name: "score integer by ref", schema: `{"properties":{"score":{"$ref":"#/$defs/s"}},"$defs":{"s":{"type":"integer"}}}`, want: map[string]any{"score": json.Number("100")}},
		{name: "score string", schema: `{"properties":{"score":{"type":"string"}}}`, want: map[string]any{"score": "99.77"}},
		{name: "score boolean", schema: `{"properties":{"score":{"type":"boolean"}}}`, path: "score"},
		{name: "half to even down", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(25, 1)}), want: map[string]any{"score": json.Number("2")}},
		{name: "half to even up", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(35, 1)}), want: map[string]any{"score": json.Number("4")}},
		{name: "above half", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(2501, 3)}), want: map[string]any{"score": json.Number("3")}},
		{name: "half to even, 100", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(995, 1)}), want: map[string]any{"score": json.Number("100")}},
		{name: "half to even, 0", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(50, 2)}), want: map[string]any{"score": json.Number("0")}},
		{name: "below half", schema: `{"properties":{"score":{"type":"integer"}}}`, args: with(map[string]any{"score": decimal(9949999, 5)}), want: map[string]any{"score": json.Number("99")}},
		{name: "small fraction", schema: ``, args: with(map[string]any{"score": decimal(5, 18)}), want: map[string]any{"score": json.Number("0.000000000000000005")}},
		{name: "trailing zeros", schema: ``, args: with(map[string]any{"score": decimal(9900, 2)}), want: map[string]any{"score": json.Number("99")}},
		{name: "100 exactly", schema: ``, args: with(map[string]any{"score": decimal(10000, 2)}), want: map[string]any{"score": json.Number("100")}},
		{name: "score above 100", schema: ``, args: with(map[string]any{"score": decimal(10001, 2)}), want: map[string]any{"score": nil}},
		{name: "score negative", schema: ``, args: with(map[string]any{"score": decimal(-1, 0)}), want: map[string]any{"score": nil}},
		{name: "score outside, required", schema: `{"required":["score"]}`, args: with(map[string]any{"score": decimal(101, 0)}), path: "score"},
		{name: "value number", schema: `{"properties":{"value":{"type":"number"}}}`, want: map[string]any{"value": json.Number("9977")}},
		{name: "value either", schema: `{"properties":{"value":{"type":["string","number"]}}}`, want: map[string]any{"value": "9977"}},
		{name: "value no number", schema: `{"properties":{"tag1":{"type":"number"}}}`, path: "tag1"},
		{name: "wide integer", schema: `{"properties":{"agentId":{"type":"integer"}}}`,
			args: with(map[string]any{"agentId": "115792089237316195423570985008687907853269984665640564039457584007913129639935"}),
			want: map[string]any{"agentId": json.Number("115792089237316195423570985008687907853269984665640564039457584007913129639935")}},
		{name: "number as string", schema: `{"properties":{"feedbackIndex":{"type":"string"}}}`, want: map[string]any{"feedbackIndex": "7"}},
		{name: "closed", schema: `{"properties":{"value":{}},"additionalProperties":false}`, want: map[string]any{"value": "9977", "deliveryId": nil, "tag1": nil}},
		{name: "closed, by pattern", schema: `{"patternProperties":{"^tag":{}},"additionalProperties":false}`, want: map[string]any{"tag1": "uptime", "value": nil}},
		{name: "closed in allOf", schema: `{"allOf":[{"properties":{"value":{}},"additionalProperties":false}]}`, want: map[string]any{"value": "9977", "deliveryId": nil}},
		{name: "unevaluated", schema: `{"allOf":[{"properties":{"value":{}}}],"properties":{"tag1":{}},"unevaluatedProperties":false}`,
			want: map[string]any{"value": "9977", "tag1": "uptime", "deliveryId": nil}},
		{name: "false property", schema: `{"properties":{"deliveryId":false}}`, want: map[string]any{"deliveryId": nil, "value": "9977"}},
		{name: "names by enum", schema: `{"propertyNames":{"enum":["value","tag1"]}}`, want: map[string]any{"value": "9977", "deliveryId": nil}},
		{name: "additional schema", schema: `{"additionalProperties":{"type":["string","number","null"]}}`, want: map[string]any{"value": "9977"}},
		{name: "optional null", schema: `{"properties":{"fileContent":{"type":"object"}}}`, want: map[string]any{"fileContent": nil}},
		{name: "required null as string", schema: `{"properties":{"fileContent":{"type":"string"}},"required":["fileContent"]}`, want: map[string]any{"fileContent": ""}},
		{name: "required null", schema: `{"properties":{"fileContent":{"type":"object"}},"required":["fileContent"]}`, path: "fileContent"},
		{name: "optional empty", schema: `{"properties":{"tag2":{"type":"string","minLength":1}}}`, want: map[string]any{"tag2": nil, "tag1": "uptime"}},
		{name: "required empty", schema: `{"properties":{"tag2":{"type":"string","minLength":1}},"required":["tag2"]}`, path: "tag2"},
		{name: "optional empty by format", schema: `{"properties":{"tag1":{"type":"string","format":"uri"},"tag2":{"type":"string","format":"uri"}}}`, want: map[string]any{"tag2": nil, "tag1": "uptime"}},
		{name: "optional empty by format or null", schema: `{"$defs":{"u":{"format":"uri"}},"properties":{"tag2":{"anyOf":[{"type":"string","$ref":"#/$defs/u"},{"type":"null"}]}}}`, want: map[string]any{"tag2": nil}},
		{name: "optional empty by format, or empty", schema: `{"properties":{"tag2":{"anyOf":[{"type":"string","format":"uri"},{"const":""}]}}}`, want: map[string]any{"tag2": ""}},
		{name: "required empty by format", schema: `{"properties":{"tag2":{"type":"string","format":"uri"}},"required":["tag2"]}`, want: map[string]any{"tag2": ""}},
		{name: "empty by format, required in some cases", schema: `{"properties":{"tag2":{"type":"string","format":"uri"}},"dependentRequired":{"tag1":["tag2"]}}`, want: map[string]any{"tag2": ""}},
		{name: "empty format of any string", schema: `{"properties":{"tag2":{"type":"string","format":"uri-reference"}}}`, want: map[string]any{"tag2": ""}},
		{name: "required missing", schema: `{"required":["signature"]}`, path: "signature"},
		{name: "draft-07", schema: `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"v":{"type":"number","minimum":0}},"properties":{"value":{"$ref":"#/definitions/v"},
			"tag1":{"type":"string","format":"uri"}},"additionalProperties":false}`, want: map[string]any{"value": json.Number("9977"), "tag1": "uptime", "deliveryId": nil}},
		{name: "unknown dialect", schema: `{"$schema":"https://example.org/mine","properties":{"value":{"type":"number"}}}`, want: map[string]any{"value": json.Number("9977")}},
		{name: "if then", schema: `{"if":{"properties":{"tag1":{"const":"uptime"}}},"then":{"required":["extra"]}}`, path: "extra"},
		{name: "ECMA pattern", schema: `{"properties":{"tag1":{"pattern":"^(?!admin).*$"}}}`, want: map[string]any{"tag1": "uptime"}},
		{name: "pattern", schema: `{"properties":{"tag1":{"pattern":"^[0-9]+$"}}}`, path: "tag1"},
		{name: "raw object", schema: `{"properties":{"fileContent":{"type":"object","required":["a"]}}}`, args: with(map[string]any{"fileContent": json.RawMessage(`{"a":1.50}`)}),
			want: map[string]any{"fileContent": json.RawMessage(`{"a":1.50}`)}},
		{name: "raw object as string", schema: `{"properties":{"fileContent":{"type":"string"}}}`, args: with(map[string]any{"fileContent": json.RawMessage(`{"a":1}`)}),
			want: map[string]any{"fileContent": `{"a":1}`}},
		{name: "inside raw", schema: `{"properties":{"fileContent":{"properties":{"a":{"items":{"type":"string"}}}}}}`, args: with(map[string]any{"fileContent": json.RawMessage(`{"a":["x",1]}`)}),
			path: "fileContent.a[1]"},
		{name: "huge number in a file", schema: `{"properties":{"fileContent":{"properties":{"a":{"type":"number","minimum":0}}}}}`,
			args: with(map[string]any{"fileContent": json.RawMessage(`{"a":1e999999999}`)}), want: map[string]any{"fileContent": json.RawMessage(`{"a":1e999999999}`)}},
		{name: "template", schema: `{"properties":{"event":{"properties":{"score":{"type":"integer"},"value":{"type":"number"}},"additionalProperties":false}}}`,
			args: map[string]any{"event": map[string]any{"score": decimal(15, 1), "value": "5", "other": 1}, "list": []any{decimal(500, 0), decimal(5, 0)}},
			want: map[string]any{"event": map[string]any{"score": json.Number("2"), "value": json.Number("5")}, "list": []any{nil, json.Number("5")}}},

		{name: "not a schema", schema: `7`, path: "-"},
		{name: "not JSON", schema: `{"a`, path: "-"},
		{name: "invalid schema", schema: `{"properties":{"value":{"type":"decimal"}}}`, path: "-"},
		{name: "network reference", schema: `{"properties":{"value":{"$ref":"http://127.0.0.1:1/schema.json"}}}`, path: "-"},
		{name: "file reference", schema: `{"$ref":"file:///etc/passwd"}`, path: "-"},
		{name: "missing reference", schema: `{"$ref":"#/nowhere"}`, path: "-"},
		{name: "dynamic reference", schema: `{"$dynamicAnchor":"a","properties":{"value":{"$dynamicRef":"#a"}}}`, path: "-"},
		{name: "deep", schema: strings.Repeat(`{"not":`, 70) + `{}` + strings.Repeat(`}`, 70), path: "-"},
		{name: "huge number", schema: `{"properties":{"value":{"maximum":1e999999999}}}`, path: "-"},
		{name: "huge multipleOf", schema: `{"properties":{"value":{"multipleOf":1e1000001}}}`, path: "-"},
		{name: "tiny minimum", schema: `{"properties":{"value":{"minimum":-1e-1000001}}}`, path: "-"},
		{name: "huge const", schema: `{"properties":{"value":{"const":1e1000001}}}`, path: "-"},
		{name: "huge number in an enum", schema: `{"properties":{"value":{"enum":[1,[{"a":1E+1000001}]]}}}`, path: "-"},
		{name: "huge numbers against exact keywords", schema: `{"properties":{"n":{"type":"integer","exclusiveMinimum":0},"list":{"uniqueItems":true,"items":{"type":"number","multipleOf":1,"enum":[1e308]}}}}`,
			args: map[string]any{"n": json.Number("1e1000001"), "list": []any{json.Number("1e1000001")}},
			want: map[string]any{"n": json.Number("1e1000001"), "list": []any{json.Number("1e1000001")}}},
		{name: "many parts", schema: `{"allOf":[` + strings.Repeat(`{},`, 2500) + `{}]}`, path: "-"},
		{name: "circle", schema: `{"$ref":"#"}`, path: "-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := tt.args
			if in == nil {
				in = args
			}
			before := fmt.Sprint(in)
			out, err := schemaOf(tt.schema).Fit(in)
			heraldtest.Equal(t, "the input after Fit", fmt.Sprint(in), before)
			if tt.path != "" {
				refused, isRefused := errors.AsType[*SchemaError](err)
				if !isRefused {
					t.Fatalf("err = %v", err)
				}
				if want := strings.TrimPrefix(tt.path, "-"); refused.Path != want {
					t.Errorf("path %q, want %q (%v)", refused.Path, want, err)
				}
				if len(err.Error()) > 500 {
					t.Errorf("a long error: %d bytes", len(err.Error()))
				}
				t.Log(err)
				return
			}
			heraldtest.Must(t, err)
			for name, want := range tt.want {
				got, ok := out[name]
				if want == nil && ok || want != nil && !reflect.DeepEqual(got, want) {
					t.Errorf("%s = %#v, want %#v", name, got, want)
				}
			}
		})
	}
}

// TestFitEndsOnHostileSchemas checks that Fit gives up on short schemas that an unbounded validator would never finish.
func TestFitEndsOnHostileSchemas(t *testing.T) {
	t.Parallel()
	nested := json.RawMessage(strings.Repeat(`{"x":`, 40) + `1` + strings.Repeat(`}`, 40))
	for name, schema := range map[string]string{
		"anyOf": `{"$ref":"#/$defs/a0","$defs":{` + chain(40, `{"anyOf":[{"$ref":"#/$defs/a%"},{"$ref":"#/$defs/a%"}]}`) + `,"a40":{"type":"string"}}}`,
		"patterns": `{"not":{"properties":{"file":{"$ref":"#/$defs/a0"}}},"$defs":{` +
			chain(40, `{"properties":{"x":{"$ref":"#/$defs/a%"}},"patternProperties":{"x":{"$ref":"#/$defs/a%"},"^x":{"$ref":"#/$defs/a%"}}}`) + `,"a40":{"type":"string"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := schemaOf(schema).Fit(map[string]any{"file": nested})
			if refused, ok := errors.AsType[*SchemaError](err); !ok || !strings.Contains(refused.Problem, "too long") {
				t.Errorf("err = %v", err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestFitSharedSchema(t *testing.T) {
	t.Parallel()
	schema := schemaOf(`{"properties":{"value":{"type":"number"}}}`)
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := schema.Fit(map[string]any{"value": "5"})
			done <- err
		}()
	}
	for range 8 {
		heraldtest.Must(t, <-done)
	}
}

func FuzzFit(f *testing.F) {
	f.Add([]byte(`{"properties":{"value":{"type":"number"}},"additionalProperties":false}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"properties":{"file":{"multipleOf":1e1000001}}}`), []byte(`1`))
	f.Add([]byte(`{"properties":{"file":{"enum":[1],"const":1,"minimum":0,"multipleOf":2}}}`), []byte(`1e1000001`))
	f.Add([]byte(`{"properties":{"score":{"type":"integer"},"file":{"type":"string"},"tag":{"format":"uri"}}}`), []byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, schema, file []byte) {
		args := map[string]any{"value": "5", "score": decimal(5, 1), "file": json.RawMessage(file), "tag": ""}
		out, err := NewSchema(schema, nil).Fit(args)
		if err != nil && !errors.As(err, new(*SchemaError)) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil && json.Valid(file) {
			_, err = json.Marshal(out)
			heraldtest.Must(t, err)
		}
		// No schema adds an argument, or changes a value except for its type and the rounding of a score.
		may := map[string][]string{"value": {"5"}, "score": {"0.5", "0"}, "file": {string(file)}, "tag": {""}}
		for name, v := range out {
			if raw, ok := v.(json.RawMessage); ok {
				v = string(raw)
			}
			if !slices.Contains(may[name], fmt.Sprint(v)) {
				t.Fatalf("%s makes %s of %s", schema, v, name)
			}
		}
	})
}

// TestEveryArgumentThatDoesNotFit checks that the error names each invalid argument once, in a fixed order, and that
// its length is bounded.
func TestEveryArgumentThatDoesNotFit(t *testing.T) {
	t.Parallel()
	args := map[string]any{"tag1": "a", "value": "b", "flag": true}
	const three = `{"type":"object","properties":{"tag1":{"type":"array"},"flag":{"anyOf":[{"type":"array"},{"type":"integer"}]}},"required":["mood","weather"]}`
	const want = "the tool's input schema refuses flag: it must be array, and is boolean; mood: it is required, and there is no value for it; " +
		"tag1: it must be array, and is string; weather: it is required, and there is no value for it"
	for range 20 {
		if _, err := schemaOf(three).Fit(args); err == nil || err.Error() != want {
			t.Fatalf("%v", err)
		}
	}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf(`"%03d%s"`, i, strings.Repeat("n", 200)))
	}
	_, err := schemaOf(`{"type":"object","required":[` + strings.Join(names, ",") + `]}`).Fit(args)
	if schema, ok := errors.AsType[*SchemaError](err); !ok || len(schema.Others) != 9 || schema.More == 0 || len(err.Error()) > 2000 {
		t.Errorf("%d others, %d more, %d bytes: %.300v", len(schema.Others), schema.More, len(err.Error()), err)
	}
}

// TestStableProblems checks that the same arguments yield the same text each time. Deliveries are grouped by this text.
func TestStableProblems(t *testing.T) {
	t.Parallel()
	args := map[string]any{"f": "", "e": "", "d": "", "c": "", "b": "", "a": ""}
	const want = "the tool's input schema refuses the arguments: additional properties 'a', 'b', 'c', 'd', 'e', 'f' not allowed; " +
		"x: it is required, and there is no value for it"
	for range 10 {
		_, err := schemaOf(`{"oneOf":[{"properties":{"y":{}},"additionalProperties":false},{"required":["x"]}]}`).Fit(args)
		heraldtest.Equal(t, "the error", fmt.Sprint(err), want)
	}
}
