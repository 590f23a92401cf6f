package doctest

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestImportsPointDownward checks the list of packages in docs/design/overview.md: the list names each package of the
// product, or the directory above it, and no package imports a package of an earlier line.
func TestImportsPointDownward(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "design", "overview.md"))
	heraldtest.Must(t, err)
	_, list, _ := strings.Cut(string(page), "\n## Packages\n")
	list, _, _ = strings.Cut(list, "\n## ")
	lines := map[string]int{} // by package
	for n, line := range strings.Split(list, "\n- ") {
		if names, _, ok := strings.Cut(line, ":"); ok && n > 0 {
			for _, m := range regexp.MustCompile("`([a-z0-9/]+)`").FindAllStringSubmatch(names, -1) {
				lines[m[1]] = n
			}
		}
	}
	lineOf := func(name string) int {
		for name != "." && lines[name] == 0 {
			name = path.Dir(name)
		}
		return lines[name]
	}

	command := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./cmd/...", "./internal/...")
	command.Dir = root
	out, err := command.Output()
	heraldtest.Must(t, err)
	const module = "github.com/agentherald/herald/"
	kits := regexp.MustCompile(`^(cmd/demo|testing/.*)$`)
	checked := 0
	for line := range strings.Lines(strings.ReplaceAll(string(out), module+"internal/", module)) {
		imports := strings.Fields(line)
		from := strings.TrimPrefix(imports[0], module)
		if kits.MatchString(from) {
			continue
		}
		if lineOf(from) == 0 {
			t.Errorf("docs/design/overview.md names no line for package %s", from)
		}
		for _, to := range imports[1:] {
			if to, ours := strings.CutPrefix(to, module); ours && to != "migrations" {
				checked++
				if lineOf(to) < lineOf(from) {
					t.Errorf("%s imports %s, which is in an earlier line of docs/design/overview.md", from, to)
				}
			}
		}
	}
	if checked < 200 {
		t.Errorf("only %d imports were checked", checked)
	}
}
