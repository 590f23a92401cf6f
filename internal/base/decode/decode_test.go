package decode

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestModest(t *testing.T) {
	fill := func(n int) string { return "[" + strings.Repeat("0,", n-3) + "0]" }
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"empty":                        {"", true},
		"a file":                       {`{"agentId":42,"value":1.5e3,"tags":["a","b"],"ok":true,"none":null}`, true},
		"as many tokens as allowed":    {fill(MaxTokens), true},
		"one token more":               {fill(MaxTokens + 1), false},
		"empty objects":                {"[" + strings.Repeat("{},", MaxTokens/2) + "{}]", false},
		"members":                      {"{" + strings.Repeat(`"":0,`, MaxTokens/2) + `"":0}`, false},
		"words without space":          {strings.Repeat(`""`, MaxTokens+1), false},
		"as deep as allowed":           {strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), true},
		"one level more":               {strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1), false},
		"deep in the middle":           {"[0," + strings.Repeat(`{"a":`, MaxDepth) + "0" + strings.Repeat("}", MaxDepth) + "]", false},
		"brackets in a string":         {`"` + strings.Repeat(`[{\"`, MaxTokens) + `"`, true},
		"a string that ends escaped":   {`["\\",` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth+1), false},
		"a quote before the next line": {": \"\n" + fill(MaxTokens+1), false},
		"an escape there":              {": \"\\\n" + fill(MaxTokens+1), false},
		"closed before it opened":      {":" + strings.Repeat("]", 5000) + "\n" + strings.Repeat("[", MaxDepth+1), false},
		"one long number":              {strings.Repeat("9", 2<<20), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heraldtest.Equal(t, "Modest is", Modest([]byte(c.text)), c.want)
			var pieces Counter
			got := true
			for piece := range slices.Chunk([]byte(c.text), 7) {
				got = pieces.Add(piece)
			}
			heraldtest.Equal(t, "in pieces it is", got, c.want)
		})
	}
	text := []byte(fill(MaxTokens))
	heraldtest.Equal(t, "allocations of counting", testing.AllocsPerRun(10, func() { Modest(text) }), 0)
}

// FuzzModest compares the token count with encoding/json's.
func FuzzModest(f *testing.F) {
	for _, text := range []string{`{"a":[1,"\"",{"b":null}],"c":-1.5e+3}`, `["\\","\\\"[",true,false]`, "[[[[]]]]", `"`, `{"a":"` + "\u2028" + `"}`, "1e700"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			Modest(text)
			return
		}
		want := 0
		d := json.NewDecoder(bytes.NewReader(text))
		for d.UseNumber(); ; want++ { // UseNumber, because a number that exceeds a float64 is a token too
			if _, err := d.Token(); err != nil {
				break
			}
		}
		var c Counter
		c.Add(text)
		if c.depth == 0 && c.tokens != want {
			t.Errorf("%d tokens, encoding/json finds %d in %q", c.tokens, want, text)
		}
	})
}

func TestBudget(t *testing.T) {
	t.Parallel()
	b := NewBudget(100 << 10)
	ctx, cancel := context.WithCancel(t.Context())
	large, err := b.Acquire(ctx, 10<<20) // more than the budget: acquires all of it
	heraldtest.Must(t, err)
	small, err := b.Acquire(ctx, freeBytes-1)
	heraldtest.Must(t, err)
	small()
	cancel()
	_, err = b.Acquire(ctx, freeBytes)
	heraldtest.Fails(t, "a document when the budget is spent", err, context.Canceled, ErrBusy)
	large()
	again, err := b.Acquire(t.Context(), 10<<20)
	heraldtest.Must(t, err)
	again()
	none, err := (*Budget)(nil).Acquire(ctx, 1<<30)
	heraldtest.Must(t, err)
	none()
}
