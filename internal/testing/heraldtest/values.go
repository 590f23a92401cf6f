package heraldtest

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/google/go-cmp/cmp"
)

// reporter contains the methods of testing.TB that Equal needs. The tests of Equal implement only these.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports the differences between two values, including unexported fields. what describes the values:
//
//	heraldtest.Equal(t, "the registration that was read", got, want)
//	heraldtest.Equal(t, "token requests", len(requests), 3) // token requests: 4, want 3
func Equal[T any](t reporter, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	options = append(options, cmp.Exporter(func(reflect.Type) bool { return true }))
	diff := cmp.Diff(want, got, options...)
	if diff == "" {
		return
	}
	switch kind := reflect.ValueOf(&got).Elem().Kind(); {
	case kind < reflect.Array: // a number or a bool
		t.Errorf("%s: %v, want %v", what, got, want)
	case kind == reflect.String && len(fmt.Sprint(got, want)) < 200:
		t.Errorf("%s: %q, want %q", what, fmt.Sprint(got), fmt.Sprint(want))
	default:
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
	Must(t, err)
	text, err := keys.Encode(nil)
	Must(t, err)
	return text.Reveal()
}
