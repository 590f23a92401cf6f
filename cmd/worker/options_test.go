package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/alecthomas/kong"
)

var (
	namedOption  = regexp.MustCompile("(?:^|[\\s(\"'`=])--([a-z][a-z0-9-]*)")
	namedCommand = regexp.MustCompile("`(?:bin/)?worker ([^`]*)`")
)

// TestNamedOptions checks that every option that a message or help text names exists: at the command if the text names
// one, otherwise at any command.
func TestNamedOptions(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(&commands{}, kong.Name("worker"))
	heraldtest.Must(t, err)
	known := map[string]bool{}
	collectOptions(parser.Model.Node, known)
	texts, commandsNamed := 0, 0
	for _, folder := range []string{".", "../../internal/operator", "../enqueue", "../../internal"} {
		eachLiteral(t, folder, func(where token.Position, text string) {
			texts++
			settings := strings.Contains(where.Filename, "/operator/config/") // their texts name options of agents' commands
			if folder == "." || folder == "../../internal/operator" && !settings {
				for _, m := range namedOption.FindAllStringSubmatch(text, -1) {
					if !known[m[1]] {
						t.Errorf("%s: there is no option --%s", where, m[1])
					}
				}
			}
			for _, m := range namedCommand.FindAllStringSubmatch(text, -1) {
				commandsNamed++
				node, rest := findCommand(parser.Model.Node, strings.Fields(m[1]))
				own := map[string]bool{}
				for n := node; n != nil; n = n.Parent {
					for _, f := range n.Flags {
						own[f.Name] = true
					}
				}
				if node == parser.Model.Node && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
					t.Errorf("%s: there is no command `worker %s`", where, m[1])
				}
				for _, o := range namedOption.FindAllStringSubmatch(strings.Join(rest, " "), -1) {
					if !own[o[1]] {
						t.Errorf("%s: `worker %s` has no option --%s", where, m[1], o[1])
					}
				}
			}
		})
	}
	if texts < 1000 || commandsNamed < 20 {
		t.Errorf("%d texts and %d commands were looked at: that proves nothing", texts, commandsNamed)
	}
}

func collectOptions(n *kong.Node, into map[string]bool) {
	for _, f := range n.Flags {
		into[f.Name] = true
		for _, alias := range f.Aliases {
			into[alias] = true
		}
	}
	for _, c := range n.Children {
		collectOptions(c, into)
	}
}

// findCommand resolves leading words to a command, and returns it with the remaining words.
func findCommand(n *kong.Node, words []string) (found *kong.Node, rest []string) {
	for i, w := range words {
		var next *kong.Node
		for _, c := range n.Children {
			for _, one := range strings.Split(w, "|") { // for example `worker token set|login`
				if c.Type == kong.CommandNode && c.Name == one {
					next = c
				}
			}
		}
		if next == nil {
			return n, words[i:]
		}
		n = next
	}
	return n, nil
}

// eachLiteral calls do for the string literals of a folder's programs, and for the help in their struct tags.
func eachLiteral(t *testing.T, folder string, do func(token.Position, string)) {
	t.Helper()
	set := token.NewFileSet()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		tags := map[*ast.BasicLit]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if n.Tag != nil {
					tags[n.Tag] = true
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if n.Kind != token.STRING || err != nil {
					return true
				}
				if tags[n] {
					text = reflect.StructTag(text).Get("help")
				}
				do(set.Position(n.Pos()), text)
			}
			return true
		})
		return nil
	})
	heraldtest.Must(t, err)
}
