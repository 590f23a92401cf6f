package storetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/memory"
	"github.com/agentherald/herald/internal/store/storetest"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// TestPostgres: time passes by everything in the tables becoming older.
func TestPostgres(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (storetest.Store, storetest.Clock) {
		url := heraldtest.Postgres(t, store.Migrate)
		s, err := store.Open(store.Config{URL: secret.New(url), MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, aging{t, url}
	})
}

type aging struct {
	t   *testing.T
	url string
}

// Advance leaves the attempts as they are: a claim knows when its own began.
func (a aging) Advance(d time.Duration) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, a.url)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `WITH agents AS (UPDATE herald.agents SET last_ok_at = last_ok_at - $1::interval)
		UPDATE herald.deliveries SET lease_until = lease_until - $1::interval, next_attempt_at = next_attempt_at - $1,
		handed_at = handed_at - $1, accepted_at = accepted_at - $1, created_at = created_at - $1, updated_at = updated_at - $1,
		finished_at = finished_at - $1`, d); err != nil {
		a.t.Fatal(err)
	}
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) (storetest.Store, storetest.Clock) {
		c := &hand{t: time.Now()}
		return memory.New(c.now), c
	})
}

// hand is a clock that only Advance moves, but for a moment with each look at it.
type hand struct {
	mu sync.Mutex
	t  time.Time
}

func (h *hand) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.t = h.t.Add(time.Microsecond)
	return h.t
}

func (h *hand) Advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.t = h.t.Add(d)
}
