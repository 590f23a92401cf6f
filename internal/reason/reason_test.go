package reason

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// TestAllListsEveryConstant: All contains each constant. Filters reject reasons that All does not contain.
func TestAllListsEveryConstant(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var constants []Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return true
		}
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		constants = append(constants, Reason(word))
		return true
	})
	listed := All()
	slices.Sort(constants)
	slices.Sort(listed)
	if len(constants) < 30 || !slices.Equal(constants, listed) {
		t.Errorf("constants %v, listed %v", constants, listed)
	}
}

// TestReasonsPage: docs/reference/reasons.md explains each reason, and no other.
func TestReasonsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	var explained []Reason
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(page, -1) {
		explained = append(explained, Reason(row[1]))
	}
	listed := All()
	slices.Sort(explained)
	slices.Sort(listed)
	if !slices.Equal(explained, listed) {
		t.Errorf("docs/reference/reasons.md explains %v, listed %v", explained, listed)
	}
}
