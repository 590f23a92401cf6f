package strictjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func decodeAny(t *testing.T, raw []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", raw, err)
	}
	return v
}

func TestFirstFault(t *testing.T) {
	t.Parallel()
	bounds := Options{MaxDepth: 3, MaxDigits: 5, MaxExponent: 10}
	for _, c := range []struct {
		doc  string
		opt  Options
		kind Kind
		want string
	}{
		{`{"a":1,"b":{"a":2,"c":[0,{"x":1,"x":2}]}}`, Options{}, Duplicate, "b.c[1].x: is given twice"},
		{`{"a":1,"\u0061":2}`, Options{}, Duplicate, "a: is given twice"},
		{`{"8453:42":{"b c":[1,2,tru]}}`, Options{}, NotJSON, `["8453:42"]["b c"][2]: is not JSON: invalid character ']' in literal true (expecting 'e'), near byte 23`},
		{`{"a":[1`, Options{}, NotJSON, "a: is not JSON: it ends too early"},
		{`{} {}`, Options{}, NotJSON, ": has text after the end of its JSON"},
		{`[[[0]]]`, bounds, 0, ""},
		{`[[[[0]]]]`, bounds, TooDeep, "[0][0][0]: is nested deeper than 3 levels"},
		{`{"n":123456}`, bounds, BadNumber, "n: is a number too long or too large to be kept"},
		{`{"n":1e11}`, bounds, BadNumber, "n: is a number too long or too large to be kept"},
		{`[12345,12e3,1.23e4,1e-2]`, bounds, 0, ""},
		{`[123e3]`, bounds, BadNumber, "[0]: is a number too long or too large to be kept"},
		{`[1.2e-2]`, bounds, BadNumber, "[0]: is a number too long or too large to be kept"},
		{`[1234e-1]`, bounds, 0, ""},
		{`[12345e-1]`, bounds, BadNumber, "[0]: is a number too long or too large to be kept"},
	} {
		v, f := Parse([]byte(c.doc), c.opt)
		switch {
		case (f == nil) != (c.want == "") || (v == nil) != (f != nil):
			t.Errorf("%s: got %v and %v, want %q", c.doc, v, f, c.want)
		case f != nil && (f.Kind != c.kind || f.Path+": "+f.Problem != c.want || f.Offset > len(c.doc)):
			t.Errorf("%s: got %+v, want %q", c.doc, f, c.want)
		}
	}
}

func TestLastWins(t *testing.T) {
	t.Parallel()
	const doc = `{"a":1,"b":2,"a":{"c":3}}`
	v, f := Parse([]byte(doc), Options{LastWins: true})
	if f != nil || !reflect.DeepEqual(v.Plain(), decodeAny(t, []byte(doc))) {
		t.Errorf("got %v, %v: not as encoding/json", v, f)
	}
}

func TestRepairedStrings(t *testing.T) {
	t.Parallel()
	var repaired []string
	v, f := Parse([]byte(`{"a\u0000":["x","\u0000","\ud800",{"b":"`+"\xff"+`"},"\ud83d\ude00","�"]}`), Options{Repaired: func(v *Value) {
		repaired = append(repaired, v.Path())
	}})
	const want = `["a�"] ["a�"][1] ["a�"][2] ["a�"][3].b`
	if f != nil || strings.Join(repaired, " ") != want || string(v.Encode()) != `{"a�":["x","�","�",{"b":"�"},"😀","�"]}` {
		t.Errorf("got %s, repaired %q, %v; want %s", v.Encode(), repaired, f, want)
	}
}

func TestLargeObjectsAreIndexed(t *testing.T) {
	t.Parallel()
	doc := `{"m0":0`
	for i := range 50 {
		doc += `,"n` + strings.Repeat("x", i) + `":[` + strings.Repeat("0,", i) + `0]`
	}
	v, f := Parse([]byte(doc+`}`), Options{})
	if f != nil {
		t.Fatal(f)
	}
	o, _ := v.Object()
	if m := o.Get("n" + strings.Repeat("x", 40)); m == nil || len(m.Data.([]*Value)) != 41 || o.Get("x") != nil {
		t.Errorf("a member of a large object: got %v", m)
	}
	if m := o.FirstUnknown("m0", "n"); m == nil || m.Name != "nx" {
		t.Errorf("the first unknown member: got %v, want nx", m)
	}
}

// escapes matches a surrogate pair, an unpaired surrogate in group 1, or any other escape.
var escapes = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.`)

// isDamagedText is IsDamaged by other means.
func isDamagedText(text []byte) bool {
	return !utf8.Valid(text) || slices.ContainsFunc(escapes.FindAllSubmatch(text, -1), func(m [][]byte) bool { return m[1] != nil })
}

// FuzzParse checks that accepted text is JSON without duplicate names, with the same value as in encoding/json, and
// that all other valid JSON is accepted too.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e3,"x\u0000",null,true,{}],"":{}}`, `{"a":1,"a":2}`, `[[[[`, "\"\xff\"", `[1,]`, `{"a":1,}`, `1 2`, ` "\ud800" `, `["\ud83d\ude00"]`, `"\udc00\udc00"`, `{"a" 1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, fault := Parse(raw, Options{})
		switch {
		case fault == nil:
			want := decodeAny(t, raw)
			if !reflect.DeepEqual(v.Plain(), want) || !reflect.DeepEqual(decodeAny(t, v.Encode()), want) {
				t.Fatalf("%q is read as %v, written as %s", raw, v.Plain(), v.Encode())
			}
		case fault.Problem == "" || len(fault.Path) > maxPathBytes+3 || utf8.Valid(raw) && !utf8.ValidString(fault.Path+fault.Problem):
			t.Fatalf("%q: the fault %+v cannot be shown", raw, fault)
		case fault.Kind != Duplicate && json.Valid(raw):
			t.Fatalf("%q is JSON and refused: %+v", raw, fault)
		}
		if fault == nil {
			repaired, plain := false, fmt.Sprint(v.Plain())
			clean, fault := Parse(raw, Options{LastWins: true, Repaired: func(*Value) { repaired = true }})
			damaged, hasNUL := isDamagedText(raw), strings.Contains(plain, "\x00")
			if fault != nil || IsDamaged(raw) != damaged || repaired != (damaged || hasNUL) || strings.Contains(fmt.Sprint(clean.Plain()), "\x00") {
				t.Fatalf("%q is damaged: %t, has NUL: %t, repaired: %t, %v", raw, damaged, hasNUL, repaired, fault)
			}
		}
		last, fault := Parse(raw, Options{LastWins: true})
		if (fault == nil) != json.Valid(raw) || fault == nil && !reflect.DeepEqual(last.Plain(), decodeAny(t, raw)) {
			t.Fatalf("%q with duplicates: %v", raw, fault)
		}
	})
}
