package doctest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// onGitHub precedes the path of a file in the links of pages that npm or pkg.go.dev show too.
const onGitHub = "https://github.com/agentherald/herald/blob/main/"

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	heading   = regexp.MustCompile(`^#+ (.*)$`)
	namedPage = regexp.MustCompile(`\bdocs/[\w./-]*\.(?:md|json|svg|png)\b`)
)

// TestLinks checks that the files and headings to which the pages link exist, and the pages that other files name.
func TestLinks(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", "..", ".."))
	anchors := map[string][]string{} // of each page, by path
	links, names := 0, 0
	exists := func(name string) bool {
		_, err := fs.Stat(root, name)
		return err == nil
	}
	check := func(from, target string) {
		name, anchor, _ := strings.Cut(target, "#")
		if rest, ours := strings.CutPrefix(name, onGitHub); ours {
			name = rest
		} else if strings.Contains(name, ":") {
			return // another site
		} else if name = path.Join(path.Dir(from), name); strings.HasPrefix(target, "#") {
			name = from
		}
		links++
		if !exists(name) {
			t.Errorf("%s: %s does not exist", from, target)
		} else if anchor != "" && strings.HasSuffix(name, ".md") {
			if anchors[name] == nil {
				page, err := fs.ReadFile(root, name)
				heraldtest.Must(t, err)
				anchors[name] = listAnchors(string(page))
			}
			if !slices.Contains(anchors[name], anchor) {
				t.Errorf("%s: %s: the page has no such heading", from, target)
			}
		}
	}
	heraldtest.Must(t, walkTexts(root, func(name, text string) {
		for _, page := range namedPage.FindAllString(text, -1) {
			names++
			if !exists(page) {
				t.Errorf("%s names %s, which does not exist", name, page)
			}
		}
		if path.Ext(name) == ".md" {
			for _, m := range link.FindAllStringSubmatch(withoutCode(text), -1) {
				check(name, m[1])
			}
		}
	}))
	if links < 100 || names < 20 {
		t.Errorf("only %d links and %d names of pages were found", links, names)
	}
}

// listPages returns the paths of the pages below docs.
func listPages(root fs.FS) (pages []string, err error) {
	err = fs.WalkDir(root, "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	})
	return pages, err
}

// walkTexts passes the path and content of each text file of the repository to visit.
func walkTexts(root fs.FS, visit func(name, text string)) error {
	return fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "node_modules", "testdata"}, d.Name()):
			return fs.SkipDir
		case d.IsDir():
			return nil
		case path.Ext(name) != "" && !slices.Contains([]string{".go", ".json", ".lua", ".md", ".mjs", ".sh", ".sql", ".ts", ".yml"}, path.Ext(name)):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err == nil {
			visit(name, string(text))
		}
		return err
	})
}

// withoutCode removes fenced blocks and code spans from a page.
func withoutCode(page string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			b.WriteString(codeSpan.ReplaceAllString(line, "``"))
		}
	}
	return b.String()
}

// listAnchors returns the anchors of a page's headings, as GitHub makes them.
func listAnchors(page string) []string {
	var anchors []string
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		m := heading.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if fenced || m == nil {
			continue
		}
		anchors = append(anchors, strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, m[1]))
	}
	return anchors
}
