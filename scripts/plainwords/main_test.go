package main

import (
	"slices"
	"testing"
)

func TestIsHard(t *testing.T) {
	t.Parallel()
	for sentence, want := range map[string]bool{
		"What is none is left out":                                      true,
		"minWait bounds what who is refused is told":                    true,
		"Nobody's cancellation is another one's":                        true,
		"The rest of what it read is dropped":                           true,
		"invalid tokens are dropped":                                    false,
		"Each caller's cancellation affects only that caller":           false,
		"It reports what the agent returned":                            false,
		"The command prints `what is left`":                             false,
		"An agent that answers late keeps its slot":                     false,
		"The user who started the demo can stop it":                     false,
		"errConcurrentUpdate means that another transaction changed it": false,
	} {
		if isHard(sentence) != want {
			t.Errorf("%q: hard is %v", sentence, !want)
		}
	}
}

func TestReadParagraphs(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct {
		text string
		want []paragraph
	}{
		"comments":     {"package p\n\n// One\n// and two.\n//\n//\tcode\nfunc f() {\n\t// Three.\n}\n", []paragraph{{3, " One and two."}, {8, " Three."}}},
		"SQL comments": {"-- one: two\nSELECT 1 -- a value\n", []paragraph{{1, " one: two"}}},
		"Markdown":     {"# A\n\nOne\ntwo.\n```sh\nls\n```\n- item\n| a | b |\n", []paragraph{{3, " One two."}, {8, " - item"}, {9, " a"}, {9, " b"}}},
		"":             {"// Code generated", nil},
	} {
		if got := readParagraphs(kind, c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}

func TestSplitSentences(t *testing.T) {
	t.Parallel()
	got := splitSentences("One thing. Two things: three are more; four v1.2 too. Five")
	if want := []string{"One thing", "Two things", "three are more", "four v1.2 too"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	all := map[string]int{"comments": 100}
	if err := report(all, map[string]int{"comments": 1}); err != nil {
		t.Error(err)
	}
	if err := report(all, map[string]int{"comments": 2}); err == nil {
		t.Error("a share of two percent passes")
	}
}
