package store

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFileDisagrees: the fields that a file contradicts are stored with its verification. They belong to that file, so
// another fetch replaces them.
func TestFileDisagrees(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	again := Outcome{Status: Waiting, Reason: "timeout", Stage: "call", Task: true, FileVerification: "not_given", FileSource: "https"}
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
		{"far too many", "not_given", many, maxNames},
		{"it agrees now", "raw", []string{}, 0},
	} {
		o := again
		o.FileVerification, o.FileDisagrees = step.verification, step.disagrees
		b, err := json.Marshal(o) // the encoding in Redis
		if err == nil {
			o = Outcome{}
			err = json.Unmarshal(b, &o)
		}
		heraldtest.Must(t, err)
		c := claim(t, s, task)
		task = *record(t, s, c, o).Task
		d := read(t, s, c.ID)
		if len(d.FileDisagrees) != step.want {
			t.Errorf("%s: %q", step.name, d.FileDisagrees)
		}
		if step.name == "two fields" && strings.Join(d.FileDisagrees, " ") != "value clientAddress" {
			t.Errorf("%q", d.FileDisagrees)
		}
		list, err := s.Deliveries(t.Context(), Filter{})
		if err != nil || len(list) != 1 || len(list[0].FileDisagrees) != step.want {
			t.Errorf("%s: %v, listed %+v", step.name, err, list)
		}
		if shown, err := json.Marshal(d); err != nil || strings.Contains(string(shown), "fileDisagrees") != (step.want > 0) {
			t.Errorf("%s: %s", step.name, shown)
		}
	}
}

// TestFreeNumberAgain: the number of a free attempt is used again, and its row does not become the next attempt's.
func TestFreeNumberAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	task := acceptOne(t, s, feedback(1, 1))
	free := Outcome{Status: Waiting, Reason: "throttled", Stage: "call", Task: true, Free: true}
	var first *Claim
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
	if d.Status != Delivered || len(d.History) != 1 || !d.History[0].StartedAt.Equal(c.StartedAt) || d.History[0].Outcome != "" {
		t.Errorf("another attempt of that number was completed: %+v", d)
	}
}

// TestPolicy: invalid fields of a stored policy are ignored, and Merge combines policies.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		`{}`: "", `{"onUnknown": "hold"}`: OnUnknownHold, `{"onUnknown": "resend", "other": [1]}`: OnUnknownResend,
		`{"onUnknown": "never"}`: "", `{"onUnknown": 3}`: "", `[1]`: "", `null`: "", `"hold"`: "", `{"onUnknown": null}`: "",
	} {
		if got := parsePolicy([]byte(stored)); got.OnUnknown != want {
			t.Errorf("%s reads %q, want %q", stored, got.OnUnknown, want)
		}
	}
	s := newStore(t)
	a := agentNamed("1")
	set := func(p Policy) string {
		t.Helper()
		heraldtest.Must(t, s.SetPolicy(t.Context(), a, p))
		return value[string](t, s, `SELECT policy::text FROM herald.agents`)
	}
	heraldtest.Equal(t, "of an agent not known yet", set(Policy{OnUnknown: OnUnknownHold}), `{"onUnknown": "hold"}`)
	exec(t, s, `UPDATE herald.agents SET policy = policy || '{"other": 1}'`)
	if got := set(Policy{}); got != `{"other": 1, "onUnknown": "hold"}` {
		t.Error(got)
	}
	if c := claim(t, s, acceptOne(t, s, feedback(1, 1))); c.Policy.OnUnknown != OnUnknownHold {
		t.Errorf("%+v", c)
	}
	if got := set(Policy{OnUnknown: OnUnknownResend}); got != `{"other": 1, "onUnknown": "resend"}` {
		t.Error(got)
	}
	exec(t, s, `UPDATE herald.agents SET policy = '[1]'`)
	if got := set(Policy{OnUnknown: OnUnknownHold}); got != `{"onUnknown": "hold"}` {
		t.Error(got)
	}
}
