package outcome

import (
	"regexp"
	"testing"
)

// TestReasons: each row has a distinct word and a known ending. Holds are free; a final ending is not.
func TestReasons(t *testing.T) {
	t.Parallel()
	word := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	if len(rows) != len(reasons) || len(rows) < 30 {
		t.Errorf("%d rows, %d reasons", len(rows), len(reasons))
	}
	for _, r := range Reasons() {
		switch e := r.Ending(); {
		case !word.MatchString(string(r)), e == Hold && !r.Free():
			t.Errorf("%s: %+v", r, rows[r])
		case e != Skip && e != Reject && e != Hold && e != Wait && e != Cancel && e != Dead:
			t.Errorf("%s has the ending %q", r, e)
		case r.Free() && e != Hold && e != Wait, rows[r].over != "" && e != Wait:
			t.Errorf("%s is final, but the row says how it waits: %+v", r, rows[r])
		}
	}
}
