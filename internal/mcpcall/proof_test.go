package mcpcall

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func prepared(t testing.TB, raw string) *inputSchema {
	t.Helper()
	s := &inputSchema{}
	if err := s.prepare(json.RawMessage(raw)); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return s
}

// Of what agents' schemas are made of, a proof knows enough for a feedback never to need the validator.
func TestProofOfAFeedback(t *testing.T) {
	t.Parallel()
	s := prepared(t, `{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"feedback","type":"object","properties":{
		"deliveryId":{"type":"string","minLength":1,"maxLength":64,"description":"once"},"agentId":{"type":"string","pattern":"^[0-9]+$"},
		"chainId":{"type":"integer","minimum":1},"clientAddress":{"$ref":"#/$defs/address"},"value":{"anyOf":[{"type":"string"},{"type":"number"}]},
		"score":{"type":"number","minimum":0,"maximum":100},"tag1":{"type":["string","null"]},"file":{"allOf":[{"type":"object"},{"properties":{"a":true}}]},
		"odd":{"multipleOf":2}},"required":["deliveryId"],"anyOf":[{"required":["score"]},{"required":["value"]}],"additionalProperties":false,
		"$defs":{"address":{"type":"string","pattern":"^0x[0-9a-f]{40}$"}}}`)
	args := func(change ...string) map[string]any {
		a := map[string]any{"deliveryId": "d", "agentId": "42", "chainId": json.Number("8453"), "clientAddress": "0x" + strings.Repeat("a", 40), "value": "955",
			"score": json.Number("95.5"), "tag1": nil, "file": map[string]any{"a": true, "b": nil}}
		for i := 0; i < len(change); i += 2 {
			var v any
			if change[i+1] == "" {
				delete(a, change[i])
			} else if err := json.Unmarshal([]byte(change[i+1]), &v); err != nil {
				t.Fatal(err)
			} else if f, ok := v.(float64); ok {
				a[change[i]] = json.Number(fmt.Sprint(f))
			} else {
				a[change[i]] = v
			}
		}
		return a
	}
	for _, tt := range []struct {
		args map[string]any
		want bool
	}{
		{args(), true},
		{args("score", ""), true},
		{args("value", "7"), true},
		{args("score", "100"), true},
		{args("score", "", "value", ""), false},
		{args("deliveryId", ""), false},
		{args("deliveryId", `""`), false},
		{args("agentId", `"x"`), false},
		{args("agentId", "42"), false},
		{args("chainId", "0"), false},
		{args("chainId", "1.5"), false},
		{args("clientAddress", `"0x"`), false},
		{args("value", "true"), false},
		{args("score", "101"), false},
		{args("tag1", "7"), false},
		{args("file", `"text"`), false},
		{args("other", "7"), false},
		{args("odd", "2"), false}, // valid, for the validator to say
	} {
		if got := s.proves(tt.args); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.args, got, tt.want)
		}
	}
}

// A feedback with its file needs no validator at an agent that has the schema we publish.
func TestProofOfThePublishedSchema(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/tools/agent.receiveFeedback.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	j, err := job.Parse([]byte(`{"type":"NewFeedback","chainId":8453,"agentId":"42","clientAddress":"0x00000000000000000000000000000000000000aa","feedbackIndex":7,
		"value":"955","valueDecimals":1,"tag1":"quality","tag2":"","feedbackURI":"data:,{}","timestamp":1789000000,"blockNumber":35000000}`), job.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tool := Tool{InputSchema: raw, schema: prepared(t, string(raw))}
	args := j.Arguments(job.File{Content: json.RawMessage(`{"a":[1.50]}`), Source: "data", Verification: "jcs"}, j.ID().String())
	fit, err := Fit(tool, args)
	if err != nil || len(fit) != len(args) || !tool.schema.proves(fit) {
		t.Errorf("%v %v", fit, err)
	}
	fit["fileSource"] = "ftp"
	if tool.schema.proves(fit) {
		t.Error("a word that is not in the enum")
	}
}

// What a proof accepts the validator accepts too, whatever the keyword, the revision of JSON Schema and the value.
func TestProofsAreTrue(t *testing.T) {
	t.Parallel()
	keywords := []string{``, `"type":"integer"`, `"type":"number"`, `"type":["string","null"]`, `"type":"object"`, `"type":"array"`, `"const":1`, `"enum":["a",1]`, `"enum":["a",null],"type":"string"`, `"enum":[null]`, `"enum":["ab"],"maxLength":1`,
		`"not":{"type":"string"}`, `"allOf":[{"type":"integer"},{"minimum":0}]`, `"anyOf":[{"type":"string"},{"multipleOf":2}]`, `"oneOf":[{"type":"integer"},{"type":"number"}]`,
		`"if":{"type":"string"},"then":{"maxLength":1}`, `"if":{"type":"string"},"else":false`, `"format":"email"`, `"$ref":"#/properties/n"`, `"$ref":"#/properties/n","maximum":5`,
		`"maxProperties":1`, `"minProperties":2`, `"required":["a"]`, `"propertyNames":{"maxLength":1}`, `"properties":{"a":{"type":"integer"}}`, `"properties":{"a":false}`,
		`"patternProperties":{"^a":{"type":"integer"}}`, `"additionalProperties":false`, `"additionalProperties":{"type":"integer"}`, `"properties":{"a":true},"additionalProperties":true`,
		`"dependencies":{"a":["b"]}`, `"dependentRequired":{"a":["b"]}`, `"dependentSchemas":{"a":false}`, `"unevaluatedProperties":false`,
		`"minItems":1`, `"items":{"type":"string"}`, `"contains":{"type":"string"}`, `"uniqueItems":true`, `"prefixItems":[false]`,
		`"minLength":2`, `"maxLength":2`, `"pattern":"^a"`, `"pattern":"(?=a)"`, `"contentEncoding":"base64"`, `"multipleOf":0.5`, `"exclusiveMinimum":0`, `"exclusiveMaximum":100`,
		`"minimum":0`, `"maximum":100`, `"minimum":0,"maximum":100`, `"minimum":-5,"maximum":-5`, `"minimum":0.5`, `"maximum":99.99`, `"minimum":100.000000000000000000001`, `"minimum":9007199254740992`,
		`"minimum":9007199254740993`, `"maximum":9007199254740992`, `"maximum":1e300`, `"minimum":1,"type":"integer"`, `"minimum":0,"exclusiveMinimum":true`}
	numbers := []string{"0", "-0", "0.0", "1", "100", "100.0", "1e2", "100.000000000000000000001", "99.999999999999999999999999", "-1", "-5", "-4.9",
		"-0.000000000000000000001", "0.5", "0.49999999999999999999", "95.5", "101", "9007199254740992", "9007199254740993", "9007199254740991.9",
		"9223372036854775808", "1e300", "1e301", "-1e300", "1e-300", "5e-324", "1e-400", "1e-401", "1e400", "0." + strings.Repeat("0", 1001) + "1", "", "-", "Inf", "0x10", "--1", "1_0"}
	values := []any{nil, true, "", "a", "ab", "äöü", "\xff", "a@b.c", map[string]any{}, map[string]any{"a": json.Number("1")}, map[string]any{"a": "b", "c": nil},
		[]any{}, []any{"a", "a"}, 7, func() {}, map[string]any{"a": 7}, []any{json.RawMessage("x")}, json.RawMessage("{}x"), json.RawMessage(""), json.RawMessage(" {"), json.RawMessage("nil")}
	for _, raw := range []string{`1`, `true`, ` null`, `"a"`, `{"a":1}`, `[1,1]`, `{"a":1e999999}`} {
		values = append(values, json.RawMessage(raw))
	}
	for _, n := range numbers {
		values = append(values, json.Number(n))
	}
	accepted := 0
	for _, dialect := range []string{"draft-04/schema#", "draft-06/schema#", "draft-07/schema#", "draft/2019-09/schema", "draft/2020-12/schema"} {
		for _, k := range keywords {
			raw := fmt.Sprintf(`{"$schema":"http://json-schema.org/%s","properties":{"n":{"type":["integer","string"]},"v":{%s}}}`, dialect, k)
			s := &inputSchema{}
			if s.prepare(json.RawMessage(raw)) != nil {
				continue // not of this revision
			}
			for i, v := range values {
				args := map[string]any{"v": v, "undeclared": values[(i+1)%len(values)]}
				if i%2 == 0 {
					delete(args, "undeclared")
				}
				if !s.proves(args) {
					continue
				}
				accepted++
				instance, err := decoded(args, "")
				if err == nil {
					err = s.validate(instance)
				}
				if err != nil {
					t.Errorf("%s accepts %#v: %v", raw, v, err)
				}
			}
		}
	}
	if accepted < 1000 {
		t.Errorf("%d were accepted at all", accepted)
	}
}

// A keyword that the library learns, or one of those that a proof does not know, is not passed over.
func TestUnderstood(t *testing.T) {
	t.Parallel()
	silent := map[string]bool{"DraftVersion": true, "Location": true, "ID": true, "Anchor": true, "DynamicAnchor": true, "RecursiveAnchor": true, "Format": true, "Title": true,
		"Description": true, "Default": true, "Comment": true, "ReadOnly": true, "WriteOnly": true, "Examples": true, "Deprecated": true}
	read := map[string]bool{"Bool": true, "Types": true, "Enum": true, "Ref": true, "AllOf": true, "AnyOf": true, "Required": true, "Properties": true, "AdditionalProperties": true,
		"MinLength": true, "MaxLength": true, "Pattern": true, "Minimum": true, "Maximum": true}
	fields := reflect.TypeFor[jsonschema.Schema]()
	for i := range fields.NumField() {
		f := fields.Field(i)
		if !f.IsExported() {
			continue
		}
		var s jsonschema.Schema
		v := reflect.ValueOf(&s).Elem().Field(i)
		switch v.Kind() {
		case reflect.Interface:
			var something any = false
			if f.Name == "Pattern" {
				something = &pattern{}
			}
			v.Set(reflect.ValueOf(something))
		case reflect.Pointer:
			v.Set(reflect.New(f.Type.Elem()))
		case reflect.Slice:
			v.Set(reflect.MakeSlice(f.Type, 1, 1))
		case reflect.Map:
			v.Set(reflect.MakeMap(f.Type))
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int:
			v.SetInt(1)
		default:
			t.Fatalf("%s is of a kind that this test does not know", f.Name)
		}
		if got, want := understood(&s), silent[f.Name] || read[f.Name]; got != want {
			t.Errorf("a schema with %s: understood %v, want %v", f.Name, got, want)
		}
	}
}

// A proof is small and cheap whatever the schema: one without end, one that says the same words again and again, one of many names.
func TestProofsAreBounded(t *testing.T) {
	t.Parallel()
	var words strings.Builder
	for i := range 2 * maxProof {
		fmt.Fprintf(&words, `"%d",`, i)
	}
	for name, raw := range map[string]string{
		"refers to itself": `{"properties":{"v":{"$ref":"#"}}}`,
		"doubles":          `{"properties":{"v":{"$ref":"#/$defs/a0"}},"$defs":{` + doublings(30) + `"a30":{}}}`,
		"many words":       `{"properties":{"v":{"enum":[` + words.String() + `"x"]}}}`,
		"words again":      `{"$ref":"#","enum":["x"]}`,
		"many names":       `{"properties":{"v":{}},"required":[` + words.String() + `"x"]}`,
	} {
		if s := prepared(t, raw); s.compiled == nil || s.proof != nil {
			t.Errorf("%s: there is a proof", name)
		}
	}
	s := prepared(t, `{"properties":{"v":{"type":"string"}}}`)
	s.budget.patience = -time.Second
	if s.proves(map[string]any{"v": strings.Repeat("x", 1<<20)}) {
		t.Error("accepted beyond the budget")
	}
}

func doublings(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	return b.String()
}

func FuzzProof(f *testing.F) {
	f.Add(`{"type":"object","properties":{"v":{"type":"integer","minimum":0}}}`, `{"v":0}`)
	f.Add(`{"required":["v"],"additionalProperties":false,"properties":{"v":{"anyOf":[{"type":"string","pattern":"^a"},{"maxLength":3}]}}}`, `{"v":"ab"}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"v":{"$ref":"#/properties/w","minimum":0,"exclusiveMinimum":true},"w":{"type":"number"}}}`, `{"v":0}`)
	f.Add(`{"allOf":[{"properties":{"v":{"maximum":9007199254740991}}},{"unevaluatedProperties":false}]}`, `{"v":9007199254740991.5}`)
	f.Add(`{"properties":{"v":{"enum":["a",null]},"w":{"anyOf":[{"type":"object"},{"type":["string","null"]}]}}}`, `{"v":"a","w":{"x":1}}`)
	f.Fuzz(func(t *testing.T, schema, text string) {
		s := &inputSchema{}
		if s.prepare(json.RawMessage(schema)) != nil || s.compiled == nil {
			return
		}
		var raw map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &raw) != nil {
			return
		}
		undecoded, args := map[string]any{}, map[string]any{}
		for name, v := range raw {
			undecoded[name] = v
			args[name], _ = decodeRaw(v, "")
		}
		var untamed map[string]any
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		if dec.Decode(&untamed) != nil || !s.proves(undecoded) && !s.proves(untamed) {
			return
		}
		if err := s.validate(args); err != nil {
			t.Errorf("accepted, and %v", err)
		}
	})
}

// What no keyword looks into needs no validator, lists neither.
func TestPlainLists(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		v    any
		want bool
	}{{[]any{"a", []any{json.Number("1")}}, true}, {[]any{7}, false}, {[]any{json.Number("1e999999")}, false}} {
		if got := plain(tt.v, false); got != tt.want {
			t.Errorf("%v: %v", tt.v, got)
		}
	}
}
