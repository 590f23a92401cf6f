package heraldtest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/secret"
	"github.com/google/go-cmp/cmp"
)

// reporter is what Equal needs of a test; rapid's have no more of testing.TB.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal reports what differs between two values, unexported fields included, under a sentence that says what they are:
//
//	heraldtest.Equal(t, "the registration that was read", got, want)
func Equal[T any](t reporter, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	options = append(options, cmp.Exporter(func(reflect.Type) bool { return true }))
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s is not as it should be (- should be, + is):\n%s", what, diff)
	}
}

// Keyset returns a new keyset as it stands in HERALD_KEYSET.
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
