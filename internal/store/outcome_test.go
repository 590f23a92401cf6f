package store

import (
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// TestFreeNumberAgain: the number of a free attempt is used again, and its row does not become the next attempt's.
func TestFreeNumberAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	free := ledger.Outcome{Status: outcome.Waiting, Reason: "throttled", Stage: "call", Task: true, Free: true}
	var first *ledger.Claim
	for range 3 {
		c := claim(t, s, task)
		if c.Attempt != 1 || c.Budget != 1 || c.Unfinished {
			t.Errorf("%+v", c)
		}
		if first == nil {
			first = c
		}
		task = *record(t, s, c, free).Task
	}
	c := claim(t, s, task)
	if _, err := s.Record(t.Context(), first, delivered); err != nil { // late, by a worker whose attempt was undone
		t.Fatal(err)
	}
	d := read(t, s, c.ID)
	if d.Status != outcome.Delivered || len(d.History) != 1 || !d.History[0].StartedAt.Equal(c.StartedAt) || d.History[0].Outcome != "" {
		t.Errorf("another attempt of that number was completed: %+v", d)
	}
}
