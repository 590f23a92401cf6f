package delivery

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
)

// TestSealedHeaders: the call gets the headers that are sealed for the event's agent. Headers that cannot be opened or
// read end the attempt.
func TestSealedHeaders(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	e := &Executor{Config: Config{Keys: keys}}
	sender := storetest.Feedback(1, 1)
	sender.Action = job.Action{Endpoint: &job.Endpoint{Transport: "http", URL: "https://a.example/mcp"}}
	seal := func(text string) []byte {
		return must(keys.Seal([]byte(text), sender.HeaderBinding(sender.Action.Endpoint.URL)))
	}
	found, err := e.jobEndpoint(&ledger.Claim{Job: sender, SealedHeaders: seal(`{"X-Key":"hunter2"}`)}, mcpcall.Endpoint{})
	if err != nil || found.Headers["X-Key"].Reveal() != "hunter2" || !found.ownHeaders {
		t.Errorf("%+v, %v", found, err)
	}
	none := sender
	none.Action.Endpoint = nil
	for want, c := range map[outcome.Reason]ledger.Claim{outcome.InternalError: {Job: sender, SealedHeaders: seal("[]")}, outcome.InvalidJob: {Job: none},
		outcome.AuthRequired: {Job: sender, SealedHeaders: must(must(secret.Create()).Seal([]byte("{}"), sender.HeaderBinding(sender.Action.Endpoint.URL)))}} {
		_, err := e.jobEndpoint(&c, mcpcall.Endpoint{})
		heraldtest.Equal(t, "the reason", classify.Error(err).Reason, want)
	}
}

// TestMemberLeases: before a call that begins late, the leases of all members are extended. If one claim is lost,
// the call is not made.
func TestMemberLeases(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		left     time.Duration
		err      error
		extended int
	}{"enough is left": {30 * time.Second, nil, 0}, "late": {29 * time.Second, nil, 2}, "lost": {29 * time.Second, ledger.ErrFenced, 1}} {
		extended := 0
		l := &faulty{extend: func(context.Context, *ledger.Claim, time.Duration) error { extended++; return c.err }}
		e := &Executor{Config: Config{Ledger: l, Lease: time.Minute, LeaseMargin: 10 * time.Second, RecordTimeout: time.Second, Now: func() time.Time { return now }}}
		a := &attempt{batch: &batch{size: 3}, lease: lease{now, time.Minute}}
		for range 2 {
			a.batch.members = append(a.batch.members, &member{attempt: &attempt{claim: &ledger.Claim{}, lease: lease{now, c.left}}})
		}
		if err := e.ensureMemberLeases(t.Context(), a, 20*time.Second); !errors.Is(err, c.err) || extended != c.extended {
			t.Errorf("%s: %d extended, %v", name, extended, err)
		}
	}
}

// TestFreeWaitGrowsWithAge: the length of a free wait depends on the delivery's age by Postgres' clock. The clock of the
// worker's machine may differ by minutes.
func TestFreeWaitGrowsWithAge(t *testing.T) {
	t.Parallel()
	claimed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, ahead := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
		e := &Executor{Config: Config{Random: func() float64 { return 0.5 }, Now: func() time.Time { return claimed.Add(ahead) }}}
		for age, want := range map[time.Duration]time.Duration{0: time.Second, 40 * time.Second: 10 * time.Second} {
			a := &attempt{claim: &ledger.Claim{CreatedAt: claimed.Add(-age), StartedAt: claimed}}
			d := e.decideOutcome(a, outcome.Fail(outcome.ChainUnavailable, "no node answers"))
			heraldtest.Equal(t, "the wait of a delivery of "+age.String()+", clock ahead by "+ahead.String(), d.Delay, want)
		}
	}
}

// TestPauseEndsByPostgresClock: an agent is not called before the end of its policy's pause by a worker whose clock is
// ahead of Postgres' clock, and without delay by one whose clock is behind. A claim that waits for Postgres ends no pause.
func TestPauseEndsByPostgresClock(t *testing.T) {
	t.Parallel()
	claimed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, ahead := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
		for pause, want := range map[time.Duration]time.Duration{3 * time.Second: 0, 4 * time.Second: time.Second, time.Hour: maxTaskWait} {
			now := claimed.Add(ahead - 8*time.Second)
			l := &faulty{claim: func(context.Context, uuid.UUID, int, time.Duration) (*ledger.Claim, error) {
				now = now.Add(8 * time.Second)
				return &ledger.Claim{StartedAt: claimed, Policy: policy.Policy{PauseUntil: claimed.Add(pause)}}, nil
			}}
			e := &Executor{Config: Config{Ledger: l, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}}
			a, err := e.claimDelivery(t.Context(), uuid.Nil, 1)
			heraldtest.Must(t, err)
			now = now.Add(3 * time.Second)
			var wait time.Duration
			if err := e.checkPause(a); err != nil {
				wait = classify.Error(err).Pause
			}
			heraldtest.Equal(t, "the wait before the end of a pause of "+pause.String()+", clock ahead by "+ahead.String(), wait, want)
		}
	}
}

// TestLeaseBeforeTheCall: if a lease has less time left than the call's 20 s and the margin of 25 s, the worker extends it
// before the call. If Postgres is away, 20 s are enough. If the claim is lost, there is no call. A lease also expires
// while the worker's machine is suspended, when the monotonic clock does not run.
func TestLeaseBeforeTheCall(t *testing.T) {
	t.Parallel()
	asked := time.Now()
	for name, c := range map[string]struct {
		now      time.Time
		extend   error
		extended int
		fails    bool
	}{
		"enough is left":              {asked.Add(15 * time.Second), errAway, 0, false},
		"it is extended":              {asked.Add(16 * time.Second), nil, 1, false},
		"what is left is ours":        {asked.Add(39 * time.Second), errAway, 1, false},
		"less than the call is left":  {asked.Add(41 * time.Second), errAway, 1, true},
		"it ran out, and is extended": {asked.Add(70 * time.Second), nil, 1, false},
		"the claim is lost":           {asked.Add(16 * time.Second), ledger.ErrFenced, 1, true},
		"a suspended machine":         {heraldtest.ResumeAt(asked, time.Hour), errAway, 1, true},
		"the wall clock is set back":  {heraldtest.ResumeAt(asked.Add(16*time.Second), -time.Hour), errAway, 1, false},
	} {
		extended := 0
		l := &faulty{extend: func(context.Context, *ledger.Claim, time.Duration) error { extended++; return c.extend }}
		e := &Executor{Config: Config{Ledger: l, Lease: time.Minute, LeaseMargin: 25 * time.Second, RecordTimeout: time.Second,
			Now: func() time.Time { return c.now }}}
		err := e.ensureLease(t.Context(), &ledger.Claim{}, &lease{asked, time.Minute}, 20*time.Second)
		if (err != nil) != c.fails || c.fails && !errors.Is(err, c.extend) || extended != c.extended {
			t.Errorf("%s: %d extended, %v", name, extended, err)
		}
	}
}
