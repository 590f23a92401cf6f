package heraldtest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// failing is a test that records its error messages.
type failing struct{ said string }

func (f *failing) Helper() {}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

func TestEqual(t *testing.T) {
	t.Parallel()
	type pair struct {
		Name   string
		hidden int
	}
	var f failing
	Equal(&f, "the pair", pair{"a", 1}, pair{"a", 1})
	if f.said != "" {
		t.Errorf("equal values differ: %s", f.said)
	}
	Equal(&f, "the pair", pair{"a", 1}, pair{"a", 2})
	Equal(&f, "calls", 4, 3)
	Equal(&f, "the name", "b", "a")
	for _, want := range []string{"calls: 4, want 3", `the name: "b", want "a"`, "the pair is not as it should be", "hidden: 2", "hidden: 1"} {
		if !strings.Contains(strings.ReplaceAll(f.said, "\u00a0", " "), want) {
			t.Errorf("%q is not said: %s", want, f.said)
		}
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	var f failing
	gone := errors.New("gone")
	Contains(&f, "the list", "one two", "two", "one")
	Lacks(&f, "the list", "one two", "three")
	Fails(&f, "the start", fmt.Errorf("it is %w", gone), "it is", gone)
	Equal(t, "what is said of texts as they should be", f.said, "")
	Contains(&f, "the list", "one", "two")
	Lacks(&f, "the log", "a secret", "secret")
	Fails(&f, "the start", nil, "words")
	Fails(&f, "the stop", gone, "words", io.EOF)
	Contains(t, "what is said", f.said, `the list: there is no "two" in`, `the log: "secret" is in`,
		`the start: no error, want one with ["words"]`, `the stop: gone, want "words"`, `the stop: gone, want "EOF"`)
}
