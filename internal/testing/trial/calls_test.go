package trial

import (
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	calls := Calls{
		{Delivery: a, Begun: at(0), Ended: at(100), Answered: true},
		{Delivery: b, Begun: at(10), Ended: at(50)},
		{Delivery: b, Begun: at(60), Ended: at(90), Answered: true},
		{Delivery: c, Begun: at(70)},
		{Delivery: a, Begun: at(95), Ended: at(99)}, // before the first one was answered
		{Delivery: a, Begun: at(200), Ended: at(210), Answered: true},
	}
	heraldtest.Equal(t, "calls were made again", len(calls.Repeats()), 3)
	if n := calls.KnownAgain(); n != 1 {
		t.Errorf("%d were called although known, want 1", n)
	}
	heraldtest.Equal(t, "overlap", calls.Overlaps(), 1)
	for _, want := range []struct {
		ms, to int
		under  int
	}{{55, 55, 1}, {55, 61, 2}, {80, 80, 3}, {300, 300, 1}} {
		if n := len(calls.At(Moment{at(want.ms), at(want.to)})); n != want.under {
			t.Errorf("%d calls are under way between %d and %d ms, want %d", n, want.ms, want.to, want.under)
		}
	}
	if m := (Moment{at(150), at(150)}); !m.Touches(calls[0], 60*time.Millisecond) || m.Touches(calls[0], 40*time.Millisecond) {
		t.Error("slack is not what it should be")
	}

	rows := map[uuid.UUID]Row{a: {Status: "delivered"}, b: {Status: "waiting"}, c: {Status: "dead"}}
	d := uuid.New()
	rows[d] = Row{Status: "delivered"} // without a call
	gone := uuid.New()
	if lost := Lost([]uuid.UUID{a, b, c, d, gone}, rows, calls); !slices.Equal(lost, []uuid.UUID{b, d, gone}) {
		t.Errorf("lost: %v", lost)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var values []time.Duration
	for i := range 100 {
		values = append(values, time.Duration(100-i))
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100, 0: 1} {
		if got := Quantile(values, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
	if values[0] != 100 {
		t.Error("the values were reordered")
	}
	if Quantile(nil, 0.5) != 0 {
		t.Error("no values have no quantile")
	}
}
