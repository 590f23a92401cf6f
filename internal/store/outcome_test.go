package store

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
)

// TestEpochIsRaisedOnce: the first failure that a moved endpoint would explain raises the epoch. It is raised again
// only after the agent has answered.
func TestEpochIsRaisedOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 8)...)
	moved := Outcome{Status: Waiting, Reason: "connect_failed", Stage: "call", Delay: time.Hour, Moved: true}
	epoch := func(want int64, why string) {
		t.Helper()
		if got := value[int64](t, s, `SELECT epoch FROM herald.agents WHERE agent_id = 1`); got != want {
			t.Errorf("%s: epoch %d, want %d", why, got, want)
		}
	}
	one, two := claim(t, s, tasks[0]), claim(t, s, tasks[1])
	plain := moved
	plain.Moved = false
	record(t, s, claim(t, s, tasks[2]), plain)
	epoch(0, "a failure that says nothing of the endpoint")
	record(t, s, one, moved)
	epoch(1, "a failure that a move explains")
	record(t, s, one, moved)
	epoch(1, "recorded twice")
	c := claim(t, s, tasks[3])
	heraldtest.Equal(t, "the claim says", c.Epoch, 1)
	record(t, s, c, moved)
	epoch(1, "resolved anew, and still failing")
	record(t, s, claim(t, s, tasks[4]), delivered)
	record(t, s, two, moved)
	epoch(1, "it knew only the epoch before that, whose endpoint nobody uses any more")
	record(t, s, claim(t, s, tasks[5]), moved)
	epoch(2, "it had answered meanwhile")
	exec(t, s, `UPDATE herald.agents SET epoch = epoch + 1`) // AgentUpdated
	record(t, s, claim(t, s, tasks[6]), moved)
	epoch(4, "the event came first, and the failure is news")
	late := claim(t, s, tasks[7])
	record(t, s, claim(t, s, acceptOne(t, s, feedback(2, 1))), delivered)
	exec(t, s, `UPDATE herald.agents SET raised_epoch = NULL`)
	lapse(t, s, late)
	if _, err := s.Record(t.Context(), late, moved); err == nil {
		t.Error("a lost claim was recorded")
	}
	epoch(4, "a lost claim")
}

func TestFetchFailures(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	failed := Outcome{Status: Waiting, Reason: "content_unavailable", Stage: "fetch", Task: true, FetchFailed: true}
	other := failed
	other.FetchFailed = false
	task := acceptOne(t, s, feedback(1, 1))
	for i, o := range []Outcome{failed, other, failed} {
		c := claim(t, s, task)
		if want := []int{0, 1, 1}[i]; c.FetchFailures != want {
			t.Errorf("attempt %d knows of %d", i+1, c.FetchFailures)
		}
		task = *record(t, s, c, o).Task
		record(t, s, c, o) // as if the answer had been lost: it counts once
	}
	c := claim(t, s, task)
	if c.FetchFailures != 2 {
		t.Errorf("%+v", c)
	}
	record(t, s, c, Outcome{Status: Dead, Reason: "timeout", Stage: "call"})
	_, _, tasks, err := s.Replay(t.Context(), ids1(c.ID), false)
	if err != nil || len(toRun(tasks)) != 1 {
		t.Fatal(tasks, err)
	}
	if c = claim(t, s, tasks[0]); c.FetchFailures != 0 {
		t.Errorf("after a replay: %+v", c)
	}
}

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

// TestSkipDispatch: the slot stays free until the reconciler dispatches.
func TestSkipDispatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 10)...)
	o := Outcome{Status: Waiting, Reason: "breaker_open", Stage: "call", Delay: time.Minute, Task: true, Free: true, SkipDispatch: true}
	r := record(t, s, claim(t, s, tasks[0]), o)
	if len(r.Next) != 0 || r.Task == nil || r.Task.N != 1 || countDispatched(t, s) != MaxDispatchedPerAgent-1 {
		t.Errorf("%+v, %d dispatched", r, countDispatched(t, s))
	}
	if again, err := s.Backlog(t.Context(), 10); err != nil || len(again) != 1 {
		t.Error(again, err)
	}
	o.SkipDispatch = false
	if r := record(t, s, claim(t, s, tasks[1]), o); len(r.Next) != 1 {
		t.Errorf("%+v", r)
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
	if err := s.SetPolicy(t.Context(), a, Policy{OnUnknown: "perhaps"}); err == nil {
		t.Error("a policy that does not exist was set")
	}
}
