package text

import "testing"

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\nb\tc":            "a b c",
		" \x1b[31mred ":      "[31mred",
		"pa\u202egpj.ex":     "pa gpj.ex",
		"\xff\u2028x":        "? x",
		"twelve letters":     "twelve lette …",
		"cut in a rune: é…!": "cut in a run …",
	} {
		if got := Excerpt(in, 12); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := Excerpt("12345678901é", 12); got != "12345678901? …" {
		t.Errorf("%q", got)
	}
}
