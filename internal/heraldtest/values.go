package heraldtest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/secret"
	"github.com/google/go-cmp/cmp"
)

// reporter contains the methods of testing.TB that Equal needs. rapid's tests implement only these.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports the differences between two values, including unexported fields. what describes the values:
//
//	heraldtest.Equal(t, "the registration that was read", got, want)
func Equal[T any](t reporter, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	options = append(options, cmp.Exporter(func(reflect.Type) bool { return true }))
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s is not as it should be (- should be, + is):\n%s", what, diff)
	}
}

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Keyset returns a new keyset in the format of HERALD_KEYSET.
func Keyset(t testing.TB) string {
	t.Helper()
	keys, err := secret.Create()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := keys.Write(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
