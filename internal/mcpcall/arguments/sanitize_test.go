package arguments

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestSanitize(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		in, want any
	}{
		{"plain", "a\tb\nc é 漢 😀", "a\tb\nc é 漢 😀"},
		{"controls", "a\x00b\x1b[31mc\r\nd\x7f\u0085e", "ab[31mc\nde"},
		{"bidi", "pay \u202egpj.exe\u202c \u2066x\u2069", "pay gpj.exe x"},
		{"marks stay", "a\u200fb\u200e", "a\u200fb\u200e"},
		{"tag characters", "good\U000e0069\U000e0067\U000e007f 🏴", "good 🏴"},
		{"raw tag characters", json.RawMessage("[\"a\U000e0069b\"]"), json.RawMessage(`["ab"]`)},
		{"number", json.Number("1"), json.Number("1")},
		{"nested", map[string]any{"k\u202e": []any{"x\x01"}}, map[string]any{"k": []any{"x"}}},
		{"raw", json.RawMessage(`{ "b" : 1.50, "a\u0000":"x\u202Ey" , "u":"é\ud83d\ude00","q":"\"\\\u001b" }`),
			json.RawMessage(`{ "b" : 1.50, "a":"xy" , "u":"é\ud83d\ude00","q":"\"\\" }`)},
		{"raw lone surrogates", json.RawMessage(`{"\udc00":"cut \uD83d","pair":"\ud83d\ude00","n":1e3}`),
			json.RawMessage("{\"\uFFFD\":\"cut \uFFFD\",\"pair\":\"\\ud83d\\ude00\",\"n\":1e3}")},
		{"raw escaped backslash", json.RawMessage("[\"\\\\ud83d \uFFFD\"]"), json.RawMessage("[\"\\\\ud83d \uFFFD\"]")},
		{"raw unchanged", json.RawMessage(`{"a" : "\u0041\n"}`), json.RawMessage(`{"a" : "\u0041\n"}`)},
		{"raw literal bidi", json.RawMessage("[\"a\u202eb\"]"), json.RawMessage(`["ab"]`)},
		{"raw broken", json.RawMessage(`{"a`), json.RawMessage(`{"a`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := map[string]any{"v": tt.in}
			got, changed := Sanitize(in)
			if !reflect.DeepEqual(got["v"], tt.want) {
				t.Errorf("got %q, want %q", got["v"], tt.want)
			}
			heraldtest.Equal(t, "changed", changed, !reflect.DeepEqual(tt.in, tt.want))
		})
	}
}

func FuzzSanitizeRaw(f *testing.F) {
	f.Add([]byte(`{"a\u0000":["\u202e",1e5,"\\"]}`))
	f.Add([]byte(`{"\\\ud83d":"\\ud83d\udc00"}`))
	f.Add([]byte("[\"\u202e\u0085\U000e0041\\u2066\",1]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, changed := Sanitize(map[string]any{"v": json.RawMessage(raw)})
		out := got["v"].(json.RawMessage)
		if json.Valid(raw) && !json.Valid(out) {
			t.Fatalf("%q became invalid: %q", raw, out)
		}
		if again, changed := Sanitize(map[string]any{"v": out}); json.Valid(raw) && changed {
			t.Fatalf("%q still unclean: %q", out, again["v"])
		}
		if !changed && string(out) != string(raw) {
			t.Fatal("changed without saying so")
		}
		var want, found any
		if json.Unmarshal(raw, &want) != nil {
			return
		}
		heraldtest.Must(t, json.Unmarshal(out, &found))
		if want, unique := sanitizeDecoded(want); unique && !reflect.DeepEqual(found, want) {
			t.Fatalf("%q became %q, want %v", raw, out, want)
		}
	})
}

// sanitizeDecoded sanitizes all strings of a decoded document. unique is false if two names of an object become equal.
func sanitizeDecoded(v any) (_ any, unique bool) {
	unique = true
	add := func(e any) any {
		e, ok := sanitizeDecoded(e)
		unique = unique && ok
		return e
	}
	switch v := v.(type) {
	case string:
		return text.Sanitize(v), true
	case []any:
		for i := range v {
			v[i] = add(v[i])
		}
	case map[string]any:
		out := map[string]any{}
		for name, e := range v {
			out[text.Sanitize(name)] = add(e)
		}
		return out, unique && len(out) == len(v)
	}
	return v, unique
}
