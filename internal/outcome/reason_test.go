package outcome

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	listed := Reasons()
	slices.Sort(constants)
	slices.Sort(listed)
	if len(constants) < 30 || !slices.Equal(constants, listed) {
		t.Errorf("constants %v, listed %v", constants, listed)
	}
}
