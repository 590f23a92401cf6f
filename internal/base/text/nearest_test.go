package text

import (
	"fmt"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestEditDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ab", 1}, {"abc", "xabc", 1}, {"abc", "acb", 2}, {"abc", "xyz", 3}, {"abcdef", "", 3}} {
		heraldtest.Equal(t, fmt.Sprintf("%s, %s", c.a, c.b), editDistance(c.a, c.b, 3), c.want)
	}
}

func TestFindNearest(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"feedback_index": "feedbackIndex", "feedbckIndx": "feedbackIndex", "tag9": "tag1", "index": ""} {
		heraldtest.Equal(t, word, FindNearest(word, []string{"tag1", "feedbackIndex"}, 2), want)
	}
}
