package effort

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// everywhere runs a test without Redis, with a real one and with miniredis.
func everywhere(t *testing.T, test func(t *testing.T, rdb redis.Cmdable)) {
	t.Run("alone", func(t *testing.T) { t.Parallel(); test(t, nil) })
	heraldtest.EachRedis(t, func(t *testing.T, url string) { test(t, heraldtest.RedisClient(t, url)) })
}

// world has workers with a common clock, which only the method move moves.
type world struct {
	testing.TB
	*heraldtest.Clock
	redis redis.Cmdable
}

func newWorld(t testing.TB, rdb redis.Cmdable) *world {
	return &world{t, heraldtest.NewClock(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)), rdb}
}

// worker returns budgets of 60 s, with a Timeout that is long enough for a loaded machine.
func (w *world) worker(adapt ...func(*Config)) *Budgets {
	w.Helper()
	cfg := Config{Size: time.Minute, Redis: w.redis, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler), Now: w.Now,
		Random: func() float64 { return 0.5 }}
	for _, a := range adapt {
		a(&cfg)
	}
	b, err := New(cfg)
	heraldtest.Must(w, err)
	if b.shared != nil {
		b.shared.now = func() int64 { return w.Now().UnixMicro() }
	}
	w.Cleanup(b.Close)
	return b
}

func agent(n int) erc8004.Agent { return erc8004.Agent{ChainID: 1, Registry: "0x1", ID: fmt.Sprint(n)} }

// begins begins an attempt that must be allowed.
func (w *world) begins(b *Budgets, of erc8004.Agent) *Hold {
	w.Helper()
	h, err := b.Begin(w.Context(), of)
	if err != nil {
		w.Fatalf("begin: %v", err)
	}
	return h
}

// refused begins an attempt that must be refused.
func (w *world) refused(b *Budgets, of erc8004.Agent) *OverError {
	w.Helper()
	h, err := b.Begin(w.Context(), of)
	over, ok := err.(*OverError)
	if !ok || h != nil {
		w.Fatalf("begin: %v, %v; want a refusal", h, err)
	}
	if over.Wait < minWait || over.Wait > maxWait || over.Text == "" {
		w.Fatalf("refused: %+v", over)
	}
	return over
}

// calls calls the agent n times, one call after the other, each of the given duration.
func (w *world) calls(b *Budgets, of erc8004.Agent, n int, took time.Duration) {
	w.Helper()
	for range n {
		h := w.begins(b, of)
		h.Reach()
		w.Advance(took)
		h.Spend(Calls, 1, took)
		h.End()
		w.awaitReports(b)
	}
}

// spends makes an attempt at the agent and charges an effort. The clock does not move.
func (w *world) spends(b *Budgets, of erc8004.Agent, what What, took time.Duration) {
	w.Helper()
	h := w.begins(b, of)
	h.Spend(what, 1, took)
	h.End()
	w.awaitReports(b)
}

// awaitReports waits until all pending usage has been reported to Redis, or Redis did not answer.
func (w *world) awaitReports(b *Budgets) {
	w.Helper()
	heraldtest.Await(w, "Redis to be told", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, a := range b.accounts.Values() {
			if a.queued && !b.isAway() {
				return false
			}
		}
		return true
	})
}

// left checks the rest of an agent's budget, as a worker knows it.
func (w *world) left(b *Budgets, of erc8004.Agent, want float64) {
	w.Helper()
	u := b.Usage(w.Context(), of)
	if u == nil || u.Left < want-0.01 || u.Left > want+0.01 {
		w.Fatalf("left: %+v, want %g s", u, want)
	}
}
