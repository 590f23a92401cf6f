package delivery

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
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

// diesBeforeKeeping claims task n for a worker that dies, so that only a forger can have put an outcome into Redis.
func (w *world) diesBeforeKeeping(id uuid.UUID, n int) ledger.Delivery {
	w.t.Helper()
	w.claim(id, n)
	return w.expire(id)
}

// keptText returns the spooled outcome of a delivery whose worker died before it recorded the outcome.
func (w *world) keptText(id uuid.UUID, n int) []byte {
	w.t.Helper()
	w.dies(id, n)
	text := must(w.queue.Outcomes().Get(w.t.Context(), id.String()))
	if len(text) == 0 {
		w.t.Fatal("Redis has nothing")
	}
	return text
}

// deliveredInJSON returns an outcome in clear.
func deliveredInJSON(attempt int, started time.Time) []byte {
	return must(json.Marshal(ledger.SpooledOutcome{Attempt: attempt, StartedAt: started, At: started.Add(time.Second),
		Outcome: ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true, Stage: "call", Result: json.RawMessage(`{"forged":true}`)}}))
}

// sealedBy seals a plausible outcome with the forger's choice of keys and head.
func sealedBy(keys event.Keys, c *ledger.Claim, past []byte) []byte {
	var p ledger.SpooledOutcome
	if err := json.Unmarshal(past, &p); err != nil {
		panic(err)
	}
	return must(sealOutcome(keys, c, p))
}

// TestForgedResults: a party that can write to Redis cannot make Herald record a delivery that was never made.
func TestForgedResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, forge := range map[string]func(w *world, d ledger.Delivery) []byte{
		"in clear": func(_ *world, d ledger.Delivery) []byte {
			return deliveredInJSON(1, d.History[0].StartedAt)
		},
		"genuine, of another delivery": func(w *world, _ ledger.Delivery) []byte {
			return w.keptText(w.dispatchTo(newAgent(w.t).URL), 1)
		},
		"sealed with the forger's own keys": func(_ *world, d ledger.Delivery) []byte {
			return sealedBy(must(secret.Create()), &ledger.Claim{ID: d.ID, No: 1, Attempt: 1}, deliveredInJSON(1, d.History[0].StartedAt))
		},
		"of the claim that reads it": func(w *world, d ledger.Delivery) []byte {
			return sealedBy(w.keys, &ledger.Claim{ID: d.ID, No: 1 << 40, Attempt: 1}, deliveredInJSON(1, d.History[0].StartedAt))
		},
		"of no attempt of it": func(w *world, d ledger.Delivery) []byte {
			return sealedBy(w.keys, &ledger.Claim{ID: d.ID, No: 1, Attempt: 7}, deliveredInJSON(7, d.History[0].StartedAt))
		},
		"only a head": func(*world, ledger.Delivery) []byte { return []byte{sealedVersion, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1} },
		"cut short":   func(*world, ledger.Delivery) []byte { return []byte{sealedVersion, 0} },
		"of another version": func(w *world, d ledger.Delivery) []byte {
			text := sealedBy(w.keys, &ledger.Claim{ID: d.ID, No: 1, Attempt: 1}, deliveredInJSON(1, d.History[0].StartedAt))
			text[0]++
			return text
		},
	} {
		// The subtests are not parallel, because the reconciler dispatches the deliveries of all of them.
		w.run(t, name, func(t *testing.T, w *world) {
			a := newAgent(t)
			id := w.dispatchTo(a.URL)
			again := w.diesBeforeKeeping(id, 1)
			heraldtest.Must(t, w.queue.Outcomes().Put(t.Context(), id.String(), forge(w, again)))
			w.callsIgnoring(a, again, spooledUnreadable, 1)
		})
	}

	w.run(t, "no text at all", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		again := w.diesBeforeKeeping(id, 1)
		rdb := w.queue.Client(10 * time.Second)
		defer func() { _ = rdb.Close() }()
		heraldtest.Must(t, rdb.LPush(heraldtest.Within(t, 10*time.Second), "herald:result:"+id.String(), "x").Err())
		w.callsIgnoring(a, again, spooledUnreadable, 1)
	})

	w.run(t, "genuine, of an attempt that ended otherwise", func(t *testing.T, w *world) {
		a := newAgent(t, failsOnce())
		id := w.dispatchTo(a.URL)
		old := w.keptText(id, 1)
		again := w.expire(id)
		w.newWorker().mustDeliver(id, again.Dispatch, "waiting server_error") // the outcome came from Redis
		w.due(id)
		again = w.diesBeforeKeeping(id, w.row(id).Dispatch)
		heraldtest.Must(t, w.queue.Outcomes().Put(t.Context(), id.String(), old))
		w.callsIgnoring(a, again, spooledOld, 2)

		// The same with the numbers of the attempt whose outcome is unknown.
		id = w.dispatchTo(newAgent(t).URL)
		old = w.keptText(id, 1)
		binary.BigEndian.PutUint32(old[9:], 2)
		c := &ledger.Claim{ID: id, No: 1 << 40, Attempt: 3}
		_, err := openOutcome(w.keys, c, old)
		heraldtest.Fails(t, "to open it as attempt 2", err)
	})
}

// callsIgnoring delivers a dispatched delivery again. The agent must be called although Redis contains an outcome, and
// the ignored outcome is counted.
func (w *world) callsIgnoring(a *agent, again ledger.Delivery, why string, calls int) {
	w.t.Helper()
	reg := prometheus.NewRegistry()
	k := w.newWorker(func(c *Config) { c.Metrics = must(NewMetrics(reg)) })
	k.mustDeliver(again.ID, again.Dispatch, "")
	if d := w.row(again.ID); d.Status != outcome.Delivered || strings.Contains(string(d.Result), "forged") {
		w.t.Errorf("%s %s", d.Status, d.Result)
	}
	heraldtest.Equal(w.t, "calls", len(a.received()), calls)
	heraldtest.Equal(w.t, "ignored outcomes", counted(w.t, reg, "herald_spooled_outcomes_ignored_total"),
		map[string]float64{why: 1})
}

// TestForgedOutcomesAreLoggedOnceAMinute: any number of forged outcomes causes at most one log line per minute.
func TestForgedOutcomesAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := &heraldtest.Log{}
	now := time.Now()
	k := w.newWorker(func(c *Config) {
		c.Logger, c.Now = slog.New(slog.NewTextHandler(log, nil)), func() time.Time { return now }
	})
	for _, want := range []int{1, 1, 1, 2} {
		if want == 2 {
			now = now.Add(time.Minute)
		}
		id := w.dispatchTo(newAgent(t).URL)
		again := w.diesBeforeKeeping(id, 1)
		heraldtest.Must(t, w.queue.Outcomes().Put(t.Context(), id.String(), []byte("forged")))
		k.mustDeliver(id, again.Dispatch, "")
		heraldtest.Equal(t, "log lines", log.Count("an outcome in Redis is ignored"), want)
	}
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

// TestResultsOutliveRotation: an outcome sealed with the previous key is used until that key is removed. Then the agent
// is called again.
func TestResultsOutliveRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	added, newKey, err := w.keys.Add()
	promoted := must(added, err)
	promoted = must(promoted.Promote(newKey))
	removed := must(promoted.Remove(w.keys.PrimaryID()))
	for _, tt := range []struct {
		name  string
		keys  *secret.Keyset
		calls int
	}{{"promoted", promoted, 1}, {"removed", removed, 2}} {
		a := newAgent(t)
		id := w.dispatchTo(a.URL)
		again := w.loseOutcome(id)
		k := w.newWorker(func(c *Config) { c.Keys = tt.keys })
		k.mustDeliver(id, again.Dispatch, "")
		heraldtest.Equal(t, tt.name+": calls", len(a.received()), tt.calls)
	}
}

// TestSpooledOutcomesAreEncrypted: spooled outcomes are encrypted, because they contain the agent's arguments and
// answer.
func TestSpooledOutcomesAreEncrypted(t *testing.T) {
	t.Parallel()
	keys, c := must(secret.Create()), &ledger.Claim{ID: uuid.New(), No: 3, Attempt: 2}
	past := ledger.SpooledOutcome{Attempt: 2, StartedAt: time.Now().UTC(), Outcome: ledger.Outcome{Status: outcome.Delivered, Error: "hunter2"}}
	text := must(sealOutcome(keys, c, past))
	if strings.Contains(string(text), "hunter2") || json.Valid(text) {
		t.Errorf("%q", text)
	}
	later := &ledger.Claim{ID: c.ID, No: 9, Attempt: 3}
	if got, err := openOutcome(keys, later, text); err != nil || got.Outcome.Error != "hunter2" || !got.StartedAt.Equal(past.StartedAt) {
		t.Errorf("%+v, %v", got, err)
	}
	var cipher *secret.DecryptError
	for i := range sealedHead - 1 { // each byte of the numbers
		moved := append([]byte(nil), text...)
		moved[1+i] ^= 1
		if _, err := openOutcome(keys, later, moved); !errors.As(err, &cipher) {
			t.Errorf("byte %d: %v", 1+i, err)
		}
	}
	if _, err := openOutcome(keys, &ledger.Claim{ID: uuid.New(), No: 9, Attempt: 3}, text); !errors.As(err, &cipher) {
		t.Errorf("of another delivery: %v", err)
	}
}

// FuzzOpenResult: no forged text can be opened.
func FuzzOpenResult(f *testing.F) {
	keys, c := must(secret.Create()), &ledger.Claim{ID: uuid.New(), No: 3, Attempt: 2}
	f.Add([]byte(nil))
	f.Add(deliveredInJSON(1, time.Now()))
	f.Add(must(sealOutcome(must(secret.Create()), c, ledger.SpooledOutcome{Attempt: 2})))
	f.Fuzz(func(t *testing.T, text []byte) {
		if past, err := openOutcome(keys, &ledger.Claim{ID: c.ID, No: 9, Attempt: 3}, text); err == nil {
			t.Errorf("%+v", past)
		}
	})
}
