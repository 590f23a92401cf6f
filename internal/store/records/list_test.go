package records_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestFilterWhileTheClockIsBehind: since and until find rows by their created_at, although Postgres' clock was up to an
// hour behind when some of them were written.
func TestFilterWhileTheClockIsBehind(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	accept(t, s, feedbacks(1, 1, 120)...)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	exec(t, s, `UPDATE herald.deliveries SET created_at = $1::timestamptz + (order_seq::int - CASE WHEN order_seq BETWEEN 41 AND 80 THEN 60 ELSE 0 END)
		* interval '1 minute'`, noon)
	for minute := -30; minute <= 130; minute += 4 {
		at := noon.Add(time.Duration(minute) * time.Minute)
		since := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE created_at >= $1`, at)
		for name, tt := range map[string]struct {
			f    records.Filter
			want int
		}{"since": {records.Filter{Since: at, Limit: 200}, since}, "until": {records.Filter{Until: at, Limit: 200}, 120 - since}} {
			counts, err := s.Count(t.Context(), tt.f)
			heraldtest.Must(t, err)
			list, err := s.Deliveries(t.Context(), tt.f)
			if n := int(counts[outcome.Queued]); err != nil || n != tt.want || len(list) != tt.want {
				t.Errorf("%s minute %d: %d counted, %d listed, want %d (%v)", name, minute, n, len(list), tt.want, err)
			}
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, slices.Concat(feedbacks(1, 1, 1), feedbacks(2, 1, 1), feedbacks(1, 2, 1), feedbacks(2, 2, 1),
		feedbacks(1, 3, 1), feedbacks(2, 3, 1), feedbacks(1, 4, 1))...) // the order of seq is the order of time
	exec(t, s, `UPDATE herald.deliveries SET created_at = '2026-01-01T00:00:00Z'::timestamptz + order_seq * interval '1 day'`)
	exec(t, s, `UPDATE herald.deliveries SET kind = 'FeedbackRevoked' WHERE agent_id = 2 AND order_seq = 3`)
	record(t, s, claim(t, s, tasks[0]), ending(outcome.Dead, "timeout"))
	chain := uint64(8453)
	day := func(n int) time.Time { return time.Date(2026, 1, 1+n, 0, 0, 0, 0, time.UTC) }
	for _, tt := range []struct {
		f    records.Filter
		want map[outcome.Status]int64
	}{
		{records.Filter{}, map[outcome.Status]int64{outcome.Dead: 1, outcome.Queued: 6}},
		{records.Filter{ChainID: &chain, AgentID: "1", Limit: 1, Before: 1}, // the page is ignored
			map[outcome.Status]int64{outcome.Dead: 1, outcome.Queued: 3}},
		{records.Filter{Statuses: []outcome.Status{outcome.Dead}}, map[outcome.Status]int64{outcome.Dead: 1}},
		{records.Filter{Statuses: []outcome.Status{outcome.Dead}, Reason: "expired"}, map[outcome.Status]int64{}},
		{records.Filter{Kind: "FeedbackRevoked"}, map[outcome.Status]int64{outcome.Queued: 1}},
		{records.Filter{Since: day(2), Until: day(4)}, map[outcome.Status]int64{outcome.Queued: 4}},
		{records.Filter{AgentID: "1", Since: day(3)}, map[outcome.Status]int64{outcome.Queued: 2}},
		{records.Filter{Until: day(2), Statuses: []outcome.Status{outcome.Queued}}, map[outcome.Status]int64{outcome.Queued: 1}},
	} {
		counts, err := s.Count(t.Context(), tt.f)
		heraldtest.Must(t, err)
		maps.DeleteFunc(counts, func(_ outcome.Status, n int64) bool { return n == 0 })
		heraldtest.Equal(t, fmt.Sprintf("counts of %+v", tt.f), counts, tt.want)
		tt.f.Limit, tt.f.Before = 0, 0
		list, err := s.Deliveries(t.Context(), tt.f)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, fmt.Sprintf("deliveries of %+v", tt.f), int64(len(list)), tt.want[outcome.Dead]+tt.want[outcome.Queued])
	}
}

// TestListDuringReplays: a list has each delivery, also one that an operator replays while the list is read.
func TestListDuringReplays(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	accepted, _ := accept(t, s, feedbacks(1, 1, 1)...)
	ids, ctx := []uuid.UUID{accepted[0].ID}, t.Context()
	moved := make(chan error)
	go func() {
		var err error
		for i := 0; i < 150 && err == nil; i++ {
			_, _, _, err = s.Cancel(ctx, ids, false)
			if err == nil {
				_, _, _, err = s.Replay(ctx, ids, false)
			}
		}
		moved <- err
	}()
	for {
		for _, f := range []records.Filter{{}, {Statuses: []outcome.Status{outcome.Queued, outcome.Cancelled}}} {
			list, err := s.Deliveries(ctx, f)
			if err != nil || len(list) != 1 {
				t.Errorf("%v: %d, %v", f.Statuses, len(list), err)
			}
		}
		select {
		case err := <-moved:
			heraldtest.Must(t, err)
			return
		default:
		}
	}
}

// TestFileDisagrees: the fields that a file contradicts are stored with its verification. They belong to that file, so
// another fetch replaces them.
func TestFileDisagrees(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	again := ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Stage: "call", Task: true, FileVerification: "not_given", FileSource: "https"}
	many := make([]string, 100)
	for i := range many {
		many[i] = strings.Repeat("\x00", 1000)
	}
	for _, step := range []struct {
		name         string
		verification string
		disagrees    []string
		want         int
	}{
		{"nothing was compared yet", "not_given", nil, 0},
		{"two fields", "not_given", []string{"value", "clientAddress"}, 2},
		{"an attempt that did not come so far", "", nil, 2},
		{"another file", "not_given", []string{"tag1"}, 1},
		{"far too many", "not_given", many, 16},
		{"it agrees now", "raw", []string{}, 0},
	} {
		o := again
		o.FileVerification, o.FileDisagrees = step.verification, step.disagrees
		b, err := json.Marshal(o) // the encoding in Redis
		if err == nil {
			o = ledger.Outcome{}
			err = json.Unmarshal(b, &o)
		}
		heraldtest.Must(t, err)
		c := claim(t, s, task)
		task = *record(t, s, c, o).Task
		d := read(t, s, c.ID)
		heraldtest.Equal(t, step.name, len(d.FileDisagrees), step.want)
		if len(step.disagrees) == step.want && step.want > 0 {
			heraldtest.Equal(t, step.name, d.FileDisagrees, step.disagrees)
		}
		list, err := s.Deliveries(t.Context(), records.Filter{})
		if err != nil || len(list) != 1 || len(list[0].FileDisagrees) != step.want {
			t.Errorf("%s: %v, listed %+v", step.name, err, list)
		}
		if shown, err := json.Marshal(d); err != nil || strings.Contains(string(shown), "fileDisagrees") != (step.want > 0) {
			t.Errorf("%s: %s", step.name, shown)
		}
	}
}

// TestLongTags: anyone can write tags of 100 KB to the chain. A page of a list contains only their beginning, because
// with the whole tags it would need hundreds of megabytes. The delivery's job has them all.
func TestLongTags(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	long := feedback(1, 1)
	long.Tag1, long.Tag2 = strings.Repeat("ä", 50_000), strings.Repeat("b", 100_000)
	id := acceptOne(t, s, long).ID
	list, err := s.Deliveries(t.Context(), records.Filter{})
	if err != nil || len(list) != 1 || list[0].Tag1 != long.Tag1[:2*256] || list[0].Tag2 != long.Tag2[:256] {
		t.Fatalf("%v, listed %+v", err, list)
	}
	d := read(t, s, id)
	if job := string(d.Job); d.Tag1 != list[0].Tag1 || !strings.Contains(job, long.Tag1) || !strings.Contains(job, long.Tag2) {
		t.Errorf("a tag of %d bytes, and a job of %d", len(d.Tag1), len(job))
	}
}
