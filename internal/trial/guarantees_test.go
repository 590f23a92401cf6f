package trial

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
)

// TestGuaranteesNameTheirTests: every test that docs/guarantees.md names must exist, because a guarantee without a test
// is worthless.
func TestGuaranteesNameTheirTests(t *testing.T) {
	t.Parallel()
	const root = "../.."
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
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || strings.HasPrefix(cells[0], "| ---") || strings.HasPrefix(cells[0], "| Promise") {
			continue
		}
		rows++
		names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[1], -1)
		if len(names) == 0 {
			t.Errorf("%q names no test", cells[0])
		}
		for _, n := range names {
			if !there[n[1]] {
				t.Errorf("%q: there is no %s", cells[0], n[1])
			}
		}
	}
	if rows < 10 {
		t.Errorf("only %d guarantees were found", rows)
	}
}
