package trial

import (
	"io/fs"
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
	const root = "../../.."
	doc, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	heraldtest.Must(t, err)
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	heraldtest.Must(t, err)
	rows := 0
	for line := range strings.Lines(string(doc)) {
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
