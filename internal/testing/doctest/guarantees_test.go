package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestGuaranteesNameTheirTests: every test that docs/guarantees.md names must exist, because a guarantee without a test
// is worthless.
func TestGuaranteesNameTheirTests(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", "..", ".."))
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	doc := ""
	heraldtest.Must(t, walkTexts(root, func(name, text string) {
		if name == "docs/guarantees.md" {
			doc = text
		}
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(text, -1) {
				there[m[1]] = true
			}
		}
	}))
	rows := 0
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "- ") {
			continue
		}
		promise, tests, _ := strings.Cut(strings.TrimSpace(line), " (`Test")
		rows++
		names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch("`Test"+tests, -1)
		if len(names) == 0 {
			t.Errorf("%q names no test", promise)
		}
		for _, n := range names {
			if !there[n[1]] {
				t.Errorf("%q: there is no %s", promise, n[1])
			}
		}
	}
	if rows < 50 {
		t.Errorf("only %d guarantees were found", rows)
	}
}
