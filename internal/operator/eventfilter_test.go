package operator

import (
	"slices"
	"testing"
)

// TestParseEventFilter: the filter has the form in which events name their agent, and an empty status selects all.
func TestParseEventFilter(t *testing.T) {
	t.Parallel()
	agent, statuses, err := ParseEventFilter("08453:01", []string{"", "dead"})
	if err != nil || agent != "8453:1" || !slices.Equal(statuses, []string{"dead"}) {
		t.Errorf("%q %q %v", agent, statuses, err)
	}
	if _, _, err := ParseEventFilter("8453", nil); err == nil {
		t.Error("an agent without an id is accepted")
	}
	if _, _, err := ParseEventFilter("", []string{"lost"}); err == nil {
		t.Error("an unknown status is accepted")
	}
}
