package postgres

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// TestNamedArguments: arguments are numbered in the order of the text. A missing argument fails the call instead of
// becoming NULL.
func TestNamedArguments(t *testing.T) {
	t.Parallel()
	q := numberArguments("SELECT @b, @a_c, @b::text -- @a_c")
	if want := "SELECT $1, $2, $1::text -- $2"; q.Text != want {
		t.Errorf("text %q, want %q", q.Text, want)
	}
	if got := q.Args(pgx.NamedArgs{"a_c": 1, "b": 2, "other": 3}); !slices.Equal(got, []any{2, 1}) {
		t.Errorf("arguments %v, want 2, 1", got)
	}
	_, err := openPool(t, heraldtest.EmptyPostgres(t)).Conns.Exec(t.Context(), "SELECT $1::text", q.Args(pgx.NamedArgs{"a_c": "x"})[0])
	if err == nil || !strings.Contains(err.Error(), "@b is not given") {
		t.Errorf("err = %v, want one that names @b", err)
	}
}

// TestStatements: each statement that a package names has a file, and each file is used.
func TestStatements(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"..", "../records", "../cursor", "../retention"} {
		sources, err := filepath.Glob(folder + "/*.go")
		heraldtest.Must(t, err)
		named := map[string]string{}
		for _, source := range sources {
			text, err := os.ReadFile(source)
			heraldtest.Must(t, err)
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			for _, m := range regexp.MustCompile(`statements\.(?:Text|Named)\("(\w+)"\)`).FindAllSubmatch(text, -1) {
				named[string(m[1])] = source
			}
		}
		there := slices.Sorted(maps.Keys(ReadStatements(os.DirFS(folder))))
		if want := slices.Sorted(maps.Keys(named)); !slices.Equal(there, want) {
			t.Errorf("%s/sql has %v, the package names %v", folder, there, want)
		}
	}
}
