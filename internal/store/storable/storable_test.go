package storable

import (
	"encoding/json"
	"strings"
	"testing"
)

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestStorable(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	long := strings.Repeat("7", maxDigits)
	for name, tt := range map[string]struct{ in, want string }{ // want "": the text is cut
		"nothing":             {"", "-"},
		"object":              {`{"a": [1, -2.5e10, "x", null, true]}`, `{"a": [1, -2.5e10, "x", null, true]}`},
		"scalar":              {`"x"`, `"x"`},
		"harmless escapes":    {`"\u003c\n\\u0000 \u202e"`, `"\u003c\n\\u0000 \u202e"`},
		"NUL escape":          {`{"a\u0000": "\u0000b"}`, `{"a` + "\uFFFD" + `":"` + "\uFFFD" + `b"}`},
		"NUL byte in string":  {"\"a\x00b\"", "\"a\uFFFDb\""},
		"NUL byte outside":    {"[1,\x002]", ""},
		"lone surrogate":      {`"\ud800"`, "\"\uFFFD\""},
		"surrogate pair":      {`"\uD83D\uDE00"`, `"😀"`},
		"invalid UTF-8":       {"\"a\xffb\xed\xa0\x80\"", "\"a\uFFFDb\uFFFD\""},
		"no JSON":             {"Internal Server Error", ""},
		"two documents":       {"{} {}", ""},
		"junk behind":         {`"\u0000" }`, ""},
		"unfinished":          {`{"a": "`, ""},
		"unfinished escape":   {`"\u00`, ""},
		"exponent":            {"[1e300, -1E+300, 1e-300, 1e00000000000001]", "[1e300, -1E+300, 1e-300, 1e00000000000001]"},
		"huge exponent":       {`{"a": 1e999999}`, ""},
		"tiny exponent":       {`{"a": 1e-20000}`, ""},
		"absurd exponent":     {`1e99999999999999999999`, ""},
		"exponent in string":  {`"1e999999"`, `"1e999999"`},
		"longest number":      {long, long},
		"number too long":     {long + "0", ""},
		"fraction too long":   {"0." + long + "0e-99", ""},
		"deepest":             {nested(maxDepth), nested(maxDepth)},
		"too deep":            {nested(maxDepth + 1), ""},
		"deep in a string":    {`"` + strings.Repeat("[", 500) + `"`, `"` + strings.Repeat("[", 500) + `"`},
		"very deep":           {nested(100000), ""},
		"too long":            {`"` + strings.Repeat("x", limit) + `"`, ""},
		"too long by repair":  {`"` + strings.Repeat("\x00", limit/2) + `"`, ""},
		"escapes when cut":    {strings.Repeat("<\x01", 1<<20), ""},
		"right to left marks": {"\"\u202egnp.exe\u2066\"", "\"\u202egnp.exe\u2066\""},
	} {
		got := JSON(json.RawMessage(tt.in), limit)
		switch {
		case tt.want == "-":
			if got != nil {
				t.Errorf("%s: %s", name, got)
			}
		case tt.want != "":
			if string(got) != tt.want {
				t.Errorf("%s: got %.80q, want %.80q", name, got, tt.want)
			}
		default:
			var c truncatedJSON
			if err := json.Unmarshal(got, &c); err != nil || !c.Truncated || c.Bytes != len(tt.in) || c.Text == "" || len(got) > limit {
				t.Errorf("%s: not cut: %.80q (%v)", name, got, err)
			}
			if len(tt.in) < 1000 && strings.ToValidUTF8(strings.ReplaceAll(tt.in, "\x00", "\uFFFD"), "\uFFFD") != c.Text {
				t.Errorf("%s: kept %q", name, c.Text)
			}
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in    string
		limit int
		want  string
	}{
		{"", 10, ""}, {"abc", 3, "abc"}, {"abcd", 3, "…"}, {"abcdef", 5, "ab…"}, {"aé€😀", 10, "aé€😀"}, {"aé€😀b", 10, "aé€…"},
		{"\x00", 10, "\uFFFD"}, {"\xff\xfe", 10, "\uFFFD"}, {"\x00\x00", 5, "…"}, {strings.Repeat("\xff", 100), 10, "\uFFFD…"},
	} {
		if got := Text(tt.in, tt.limit); got != tt.want {
			t.Errorf("%q at %d: %q, want %q", tt.in, tt.limit, got, tt.want)
		}
	}
}
