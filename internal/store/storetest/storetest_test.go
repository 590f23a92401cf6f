package storetest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/memory"
	"github.com/agentherald/herald/internal/store/storetest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func TestPostgres(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (storetest.Store, storetest.Clock) {
		url := heraldtest.Postgres(t, store.Migrate)
		s, err := store.Open(store.Config{URL: secret.New(url), MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, storetest.Aging(t, url)
	})
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) (storetest.Store, storetest.Clock) {
		c := &hand{t: time.Now()}
		return memory.New(c.now), c
	})
}

func TestPostgresOrder(t *testing.T) {
	storetest.RunOrder(t, func(t *testing.T) (storetest.OrderedStore, storetest.Clock) {
		url := heraldtest.Postgres(t, store.Migrate)
		s, err := store.Open(store.Config{URL: secret.New(url), MaxConns: 4, StrictOrder: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, storetest.Aging(t, url)
	})
}

func TestMemoryOrder(t *testing.T) {
	storetest.RunOrder(t, func(*testing.T) (storetest.OrderedStore, storetest.Clock) {
		c := &hand{t: time.Now()}
		return memory.New(c.now).KeepOrder(), c
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
