package doctest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

var (
	fileName  = regexp.MustCompile(`\b([a-z0-9_/]+\.(?:go|sql|lua))(?:[^.\w]|\.\s|\.?$)`)
	nameInDoc = regexp.MustCompile(`\b(\w*[a-z][A-Z]\w*) \(([a-z0-9_/]+\.(?:go|sql|lua))[,:;)]`) // identifier (file.go)
)

// TestFilesThatCommentsName checks that each Go, SQL and Lua file that a comment or a page of docs/design names exists, and that it
// contains the identifier before it in "name (file.go)". A path may begin at the root or at the end of any folder.
func TestFilesThatCommentsName(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", "..", ".."))
	files := map[string]string{} // by path
	heraldtest.Must(t, walkTexts(root, func(name, text string) {
		if slices.Contains([]string{".go", ".sql", ".lua"}, path.Ext(name)) || path.Dir(name) == "docs/design" || name == "docs/contributing/development.md" {
			files[name] = text
		}
	}))
	find := func(from, named string) (content string, found bool) {
		for _, exact := range []string{path.Join(path.Dir(from), named), named} {
			if c, there := files[exact]; there {
				return c, true
			}
		}
		for name, c := range files {
			if strings.HasSuffix(name, "/"+named) {
				content, found = content+c, true
			}
		}
		return content, found
	}
	checked := 0
	for name, content := range files {
		for n, line := range strings.Split(content, "\n") {
			text := commentOf(name, line)
			for _, m := range fileName.FindAllStringSubmatch(text, -1) {
				checked++
				if _, found := find(name, m[1]); !found {
					t.Errorf("%s:%d names %s, which does not exist", name, n+1, m[1])
				}
			}
			for _, m := range nameInDoc.FindAllStringSubmatch(text, -1) {
				if there, found := find(name, m[2]); found && !strings.Contains(there, m[1]) {
					t.Errorf("%s:%d: %s does not contain %s", name, n+1, m[2], m[1])
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names of files were found", checked)
	}
}

// commentOf returns the comment in a line of a source file, or the whole line of a page.
func commentOf(name, line string) string {
	marker := map[string]string{".go": "//", ".sql": "--", ".lua": "--"}[path.Ext(name)]
	if marker == "" {
		return line
	}
	_, comment, _ := strings.Cut(line, marker)
	return comment
}
