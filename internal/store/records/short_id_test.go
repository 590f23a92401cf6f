package records_test

import (
	"testing"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestParseShortID checks that the beginning of an id, with or without dashes, is a range of ids.
func TestParseShortID(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"01234567":                             "01234567-0000-0000-0000-000000000000 01234567-ffff-ffff-ffff-ffffffffffff",
		"01234567-89":                          "01234567-8900-0000-0000-000000000000 01234567-89ff-ffff-ffff-ffffffffffff",
		"0123456789ABCDEF0123456789abcdef":     "01234567-89ab-cdef-0123-456789abcdef 01234567-89ab-cdef-0123-456789abcdef",
		"01234567-89ab-cdef-0123-456789abcdef": "01234567-89ab-cdef-0123-456789abcdef 01234567-89ab-cdef-0123-456789abcdef",
	} {
		first, last, ok := records.ParseShortID(s)
		if got := first.String() + " " + last.String(); !ok || got != want {
			t.Errorf("%s: %t, %s", s, ok, got)
		}
	}
	for _, s := range []string{"", "0123456", "0123456-", "0123456x", "Weather station", "0123456789abcdef0123456789abcdef0", "8453:42"} {
		_, _, ok := records.ParseShortID(s)
		heraldtest.Equal(t, s, ok, false)
	}
}
