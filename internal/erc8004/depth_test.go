package erc8004

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestParseDepth(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Depth{
		"0": {}, "0s": {}, "12": {Blocks: 12}, "4294967295": {Blocks: 1<<32 - 1},
		"6s": {Time: 6 * time.Second}, "500ms": {Time: 500 * time.Millisecond}, "168h": {Time: MaxDepth},
		"safe": {Tag: Safe}, "finalized": {Tag: Finalized},
	} {
		got, problem := ParseDepth(text)
		heraldtest.Equal(t, text, problem, "")
		heraldtest.Equal(t, text, got, want)
		if again, _ := ParseDepth(got.String()); again != want {
			t.Errorf("%s is written as %s", text, got)
		}
	}
	for _, text := range []string{"", "x", "-1", "-6s", "6", "4294967296", "169h", "Safe", "latest", "6 s", "1.5"} {
		if got, problem := ParseDepth(text); (problem == "") != (text == "6") {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
