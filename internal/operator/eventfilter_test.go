package operator

import (
	"slices"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestParseEventFilter: the filter has the form in which events name their agent, and an empty status selects all.
func TestParseEventFilter(t *testing.T) {
	t.Parallel()
	agent, statuses, err := ParseEventFilter("08453:01", []string{"", "dead"})
	if err != nil || agent != "8453:1" || !slices.Equal(statuses, []string{"dead"}) {
		t.Errorf("%q %q %v", agent, statuses, err)
	}
	_, _, err = ParseEventFilter("8453", nil)
	heraldtest.Fails(t, "an agent without an id", err)
	_, _, err = ParseEventFilter("", []string{"lost"})
	heraldtest.Fails(t, "an unknown status", err)
}
