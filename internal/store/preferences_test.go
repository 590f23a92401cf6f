package store

import (
	"reflect"
	"testing"
	"time"
)

// putOff is the outcome of a delivery whose agent pauses.
var putOff = Outcome{Status: Waiting, Reason: "throttled", Delay: time.Minute, Task: true, Free: true, SkipDispatch: true, HoldLine: 2 * time.Minute, Stage: "check"}

// TestPausedBacklog: while an agent's backlog is paused, new deliveries stay in it, and neither Accept nor the
// reconciler dispatches them. Other agents are not affected.
func TestPausedBacklog(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	record(t, s, claim(t, s, acceptOne(t, s, feedback(1, 1))), putOff)
	dispatchedOf := func(agent, index int) int {
		t.Helper()
		_, tasks, err := s.Accept(t.Context(), []Intake{{Job: feedback(agent, index)}})
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	backlog := func() int {
		t.Helper()
		tasks, err := s.Backlog(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	for index := 2; index < 20; index++ {
		if n := dispatchedOf(1, index); n != 0 {
			t.Fatalf("feedback %d: %d were dispatched", index, n)
		}
	}
	if n := dispatchedOf(2, 1); n != 1 {
		t.Errorf("of another agent %d were dispatched", n)
	}
	if n := backlog(); n != 0 {
		t.Errorf("the reconciler dispatched %d", n)
	}
	// A shorter pause does not shorten the present one.
	shorter := putOff
	shorter.HoldLine = time.Second
	exec(t, s, `UPDATE herald.deliveries SET next_attempt_at = now() WHERE status = 'waiting'`)
	record(t, s, claim(t, s, Task{ID: feedback(1, 1).ID(), N: 1}), shorter)
	if left := value[float64](t, s, `SELECT extract(epoch FROM line_held_until - now())::float8 FROM herald.agents WHERE agent_id = 1`); left < 60 {
		t.Errorf("held for %v s", left)
	}
	exec(t, s, `UPDATE herald.agents SET line_held_until = now() - interval '1 s'`)
	if n := backlog(); n != MaxDispatchedPerAgent {
		t.Errorf("the reconciler dispatched %d afterwards", n)
	}
}

// TestPreferencesRecorded: the most recent preferences are stored, alone or in a group. Older ones from a spooled
// outcome are ignored.
func TestPreferencesRecorded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	at := time.Date(2026, 11, 23, 12, 0, 0, 5e6, time.UTC)
	says := func(batch int, at time.Time) Outcome {
		o := delivered
		o.Preferences = &Preferences{Kinds: []string{}, BatchSize: batch, MaxPerSecond: 0.25, PauseUntil: at.Add(time.Hour + time.Millisecond), SaidAt: at}
		return o
	}
	stored := func() *Preferences {
		t.Helper()
		r, err := s.AgentRow(t.Context(), agentNamed("1"))
		if err != nil {
			t.Fatal(err)
		}
		return r.Preferences
	}
	want := &Preferences{Kinds: []string{}, BatchSize: 1, MaxPerSecond: 0.25, PauseUntil: at.Add(time.Hour).Truncate(time.Second), SaidAt: at}
	index := 0
	next := func() *Claim { index++; return claim(t, s, acceptOne(t, s, feedback(1, index))) }

	alone := says(1, at)
	alone.SkipDispatch = true
	record(t, s, next(), alone)
	if got := stored(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	record(t, s, next(), delivered)
	record(t, s, next(), says(2, at.Add(-time.Second)))
	alone = says(3, at.Add(-time.Millisecond))
	alone.SkipDispatch = true
	record(t, s, next(), alone)
	if got := stored(); got.BatchSize != 1 {
		t.Errorf("%+v", got)
	}
	record(t, s, next(), says(4, at.Add(time.Millisecond)))
	if got := stored(); got.BatchSize != 4 {
		t.Errorf("%+v", got)
	}

	if c := next(); c.Preferences.BatchSize != 4 && time.Since(at) < PreferencesLife {
		t.Errorf("%+v", c.Preferences)
	}
	if err := s.ClearPreferences(t.Context(), agentNamed("1")); err != nil {
		t.Fatal(err)
	}
	if got := stored(); got != nil {
		t.Errorf("%+v", got)
	}
	if err := s.ClearPreferences(t.Context(), agentNamed("99")); err == nil {
		t.Error("an agent that nobody knows has no preferences")
	}
}

// TestPreferencesInForce: preferences are in force for a week, and a pause for a day. The operator's policy overrides
// them. An invalid value that was written to the column by hand has no effect.
func TestPreferencesInForce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	said := Preferences{BatchSize: 3, PauseUntil: now.Add(time.Hour), SaidAt: now.Add(-time.Hour)}
	if got := said.InForce(Policy{}, now); !reflect.DeepEqual(got, said) {
		t.Errorf("%+v", got)
	}
	if got := said.InForce(Policy{Preferences: PreferencesIgnore}, now); !reflect.DeepEqual(got, Preferences{}) {
		t.Errorf("ignored: %+v", got)
	}
	if got := said.InForce(Policy{}, said.SaidAt.Add(PreferencesLife+1)); !reflect.DeepEqual(got, Preferences{}) {
		t.Errorf("aged: %+v", got)
	}
	if got := said.InForce(Policy{}, now.Add(time.Hour)); !got.PauseUntil.IsZero() || got.BatchSize != 3 {
		t.Errorf("paused no more: %+v", got)
	}
	said.PauseUntil = now.Add(1000 * time.Hour)
	if got := said.InForce(Policy{}, now); !got.PauseUntil.Equal(said.SaidAt.Add(MaxPause)) {
		t.Errorf("paused for long: %+v", got)
	}
	for stored, want := range map[string]Preferences{
		``: {}, `null`: {}, `[1]`: {}, `"x"`: {}, `{"batchSize": "many"}`: {}, `{"pauseUntil": "whenever"}`: {},
		`{"batchSize": -1, "maxPerSecond": -1}`: {}, `{"batchSize": 1e6}`: {}, `{"batchSize": 51, "maxPerSecond": 1}`: {MaxPerSecond: 1},
	} {
		if got := parsePreferences([]byte(stored)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads %+v", stored, got)
		}
	}
}
