package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// oneOutcome is a spool that contains one text.
type oneOutcome struct {
	OutcomeSpool
	text []byte
}

func (s oneOutcome) Get(context.Context, string) ([]byte, error) { return s.text, nil }

// success is a plausible outcome of an attempt.
func success(attempt int) ledger.SpooledOutcome {
	return ledger.SpooledOutcome{Attempt: attempt, Outcome: ledger.Outcome{Status: outcome.Delivered, Called: true, Error: "hunter2"}}
}

// sealSuccess seals it for a claim.
func sealSuccess(keys event.Keys, id uuid.UUID, claimNo int64, attempt int) []byte {
	return must(sealOutcome(keys, &ledger.Claim{ID: id, No: claimNo, Attempt: attempt}, success(attempt)))
}

// TestForgedResults: a party that can write to Redis cannot make Herald record a delivery that was never made. Any number
// of forged outcomes causes at most one log line per minute.
func TestForgedResults(t *testing.T) {
	t.Parallel()
	keys, reg, log, clock := must(secret.Create()), prometheus.NewRegistry(), &heraldtest.Log{}, heraldtest.NewClock(time.Now())
	e := &Executor{Config: Config{Keys: keys, Metrics: must(NewMetrics(reg)), Now: clock.Now, Logger: log.Logger(slog.LevelWarn)}}
	c := &ledger.Claim{ID: uuid.New(), No: 9, Attempt: 3, Budget: 3, Unfinished: true}
	genuine := sealSuccess(keys, c.ID, 4, 2)
	forged := map[string][]byte{
		"in clear":                          asJSON(success(2)),
		"genuine, of another delivery":      sealSuccess(keys, uuid.New(), 4, 2),
		"sealed with the forger's own keys": sealSuccess(must(secret.Create()), c.ID, 4, 2),
		"of the claim that reads it":        sealSuccess(keys, c.ID, c.No, 2),
		"of the attempt that reads it":      sealSuccess(keys, c.ID, 4, c.Attempt),
		"only a head":                       genuine[:sealedHead],
		"cut short":                         genuine[:2],
	}
	for i := range sealedHead + 1 { // the version, each byte of the numbers, and the text
		changed := slices.Clone(genuine)
		changed[i] ^= 1
		forged[fmt.Sprint("changed in byte ", i)] = changed
	}
	for name, text := range forged {
		e.Spool = oneOutcome{text: text}
		if past, err := e.loadSpooledOutcome(t.Context(), c); past != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, past, err)
		}
	}
	heraldtest.Equal(t, "ignored outcomes", counted(t, reg, "herald_spooled_outcomes_ignored_total"),
		map[string]float64{"unreadable": float64(len(forged))})
	const line = "an outcome in Redis is ignored"
	heraldtest.Equal(t, "log lines in a minute", log.Count(line), 1)
	clock.Advance(time.Minute)
	must(e.loadSpooledOutcome(t.Context(), c))
	heraldtest.Equal(t, "log lines after a minute", log.Count(line), 2)
}

// TestIgnoredOutcomes: a worker calls the agent, and counts the outcome in Redis as ignored, if Redis has no text, or the
// genuine outcome of an attempt that has another outcome in Postgres.
func TestIgnoredOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// callsIgnoring lets the worker of the dispatched task die, and delivers again.
	callsIgnoring := func(w *world, a *agent, id uuid.UUID, why string, calls int) {
		w.t.Helper()
		w.claim(id, w.row(id).Dispatch)
		reg := prometheus.NewRegistry()
		w.newWorker(func(c *Config) { c.Metrics = must(NewMetrics(reg)) }).mustDeliver(id, w.expire(id).Dispatch, "")
		w.until(id, outcome.Delivered)
		heraldtest.Equal(w.t, "calls", len(a.received()), calls)
		heraldtest.Equal(w.t, "ignored outcomes", counted(w.t, reg, "herald_spooled_outcomes_ignored_total"),
			map[string]float64{why: 1})
	}
	w.run(t, "no text", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		heraldtest.Must(t, heraldtest.RedisClient(t, w.redisURL).LPush(t.Context(), "herald:result:"+id.String(), "x").Err())
		callsIgnoring(w, a, id, "unreadable", 1)
	})
	w.run(t, "of an attempt that ended otherwise", func(t *testing.T, w *world) {
		a := newAgent(t, failsOnce())
		id := w.dispatchTo(a.URL)
		again := w.loseOutcome(id)
		old := must(w.queue.Outcomes().Get(t.Context(), id.String()))
		w.newWorker().mustDeliver(id, again.Dispatch, "waiting server_error") // the outcome came from Redis
		w.due(id)
		heraldtest.Must(t, w.queue.Outcomes().Put(t.Context(), id.String(), old))
		callsIgnoring(w, a, id, "old", 2)
	})
}

// TestTaskOfAnotherHerald: a task of a delivery that Postgres does not have causes at most one log line per minute. An
// outdated task causes none.
func TestTaskOfAnotherHerald(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := &heraldtest.Log{}
	now := time.Now()
	k := w.newWorker(func(c *Config) {
		c.Logger, c.Now = slog.New(slog.NewTextHandler(log, nil)), func() time.Time { return now }
	})
	refuse := func(id uuid.UUID, n, want int) {
		t.Helper()
		k.mustDeliver(id, n, "no attempt")
		heraldtest.Equal(t, "log lines", log.Count("another Herald uses this Redis database"), want)
	}
	refuse(w.dispatchTo(newAgent(t).URL), 7, 0)
	refuse(uuid.New(), 1, 0)
	now = now.Add(time.Minute)
	refuse(uuid.New(), 1, 1)
	refuse(uuid.New(), 1, 1)
}

// TestLoadSpooledOutcome: the wait of a spooled outcome continues, and is not longer because of a clock that is
// behind. A replay does not end with the failure of an attempt before it, but with a success.
func TestLoadSpooledOutcome(t *testing.T) {
	t.Parallel()
	keys, id, spooled := must(secret.Create()), uuid.New(), time.Now().UTC()
	for name, c := range map[string]struct {
		attempt int // of the outcome
		status  outcome.Status
		replay  bool
		later   time.Duration
		wait    time.Duration // of 100 s; negative: the outcome is ignored
	}{
		"40 s later":                       {2, outcome.Waiting, false, 40 * time.Second, 60 * time.Second},
		"after its wait":                   {2, outcome.Waiting, false, time.Hour, 0},
		"by a clock an hour behind":        {2, outcome.Waiting, false, -time.Hour, 100 * time.Second},
		"of a replay":                      {2, outcome.Waiting, true, 0, 100 * time.Second},
		"before a replay":                  {1, outcome.Waiting, true, 0, -1},
		"before a replay, and a success":   {1, outcome.Delivered, true, 0, 100 * time.Second},
		"before other attempts, no replay": {1, outcome.Waiting, false, 0, 100 * time.Second},
	} {
		past := ledger.SpooledOutcome{Attempt: c.attempt, At: spooled, Outcome: ledger.Outcome{Status: c.status, Delay: 100 * time.Second}}
		text := must(sealOutcome(keys, &ledger.Claim{ID: id, No: 3, Attempt: c.attempt}, past))
		e := &Executor{Config: Config{Keys: keys, Spool: oneOutcome{text: text}, Now: func() time.Time { return spooled.Add(c.later) }}}
		claim := &ledger.Claim{ID: id, No: 9, Attempt: 3, Budget: 2, Replay: c.replay, Unfinished: true}
		var want *ledger.SpooledOutcome
		if past.Outcome.Delay = c.wait; c.wait >= 0 {
			want = &past
		}
		heraldtest.Equal(t, name, must(e.loadSpooledOutcome(t.Context(), claim)), want)
		claim.Unfinished = false
		heraldtest.Equal(t, name+", if all attempts have outcomes", must(e.loadSpooledOutcome(t.Context(), claim)), nil)
	}
}

// TestResultsOutliveRotation: an outcome sealed with the previous key is used until that key is removed. Then the agent
// is called again.
func TestResultsOutliveRotation(t *testing.T) {
	t.Parallel()
	keys, id := must(secret.Create()), uuid.New()
	added, newKey, err := keys.Add()
	heraldtest.Must(t, err)
	promoted := must(added.Promote(newKey))
	text, later := sealSuccess(keys, id, 3, 2), &ledger.Claim{ID: id, No: 9, Attempt: 3}
	heraldtest.Equal(t, "the outcome", *must(openOutcome(promoted, later, text)), success(2))
	_, err = openOutcome(must(promoted.Remove(keys.PrimaryID())), later, text)
	heraldtest.Fails(t, "to open it without its key", err)
}

// TestSpooledOutcomesAreEncrypted: spooled outcomes are encrypted, because they contain the agent's arguments and
// answer.
func TestSpooledOutcomesAreEncrypted(t *testing.T) {
	t.Parallel()
	text := sealSuccess(must(secret.Create()), uuid.New(), 3, 2)
	if strings.Contains(string(text), "hunter2") || json.Valid(text) {
		t.Errorf("%q", text)
	}
}

// FuzzOpenResult: no forged text can be opened.
func FuzzOpenResult(f *testing.F) {
	keys, id := must(secret.Create()), uuid.New()
	f.Add([]byte(nil))
	f.Add([]byte(asJSON(success(2))))
	f.Add(sealSuccess(must(secret.Create()), id, 3, 2))
	f.Fuzz(func(t *testing.T, text []byte) {
		if past, err := openOutcome(keys, &ledger.Claim{ID: id, No: 9, Attempt: 3}, text); err == nil {
			t.Errorf("%+v", past)
		}
	})
}
