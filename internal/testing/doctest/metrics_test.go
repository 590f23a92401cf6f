package doctest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMetricsPage checks that docs/reference/metrics.md has each metric that the code declares, and no other.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", "..", ".."))
	declared := regexp.MustCompile(`(?:Name: |newGauge\(|NewDesc\()"((?:herald|mcp)_[a-z_]+)"`)
	inCode, onPage := map[string]bool{}, map[string]bool{}
	heraldtest.Must(t, walkTexts(root, func(name, text string) {
		switch {
		case name == "docs/reference/metrics.md":
			for line := range strings.Lines(text) {
				if names, isItem := strings.CutPrefix(line, "- `"); isItem {
					names, _, _ = strings.Cut(names, ":")
					names, _, _ = strings.Cut(names, " (")
					for _, metric := range strings.Split(strings.Trim(names, "`"), "`, `") {
						onPage[metric] = true
					}
				}
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			for _, m := range declared.FindAllStringSubmatch(text, -1) {
				inCode[m[1]] = true
			}
		}
	}))
	code, page := slices.Sorted(maps.Keys(inCode)), slices.Sorted(maps.Keys(onPage))
	if len(code) < 20 || !slices.Equal(code, page) {
		t.Errorf("the code declares %v, the page has %v", code, page)
	}
}
