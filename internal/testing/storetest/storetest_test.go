package storetest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/model"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func openStore(t *testing.T, c postgres.Config, strictOrder bool) storetest.Postgres {
	t.Helper()
	c.MaxConns = 4
	s, err := store.Open(c)
	heraldtest.Must(t, err)
	t.Cleanup(s.Close)
	s.StrictOrder = strictOrder
	return storetest.JoinRecords(s)
}

// reusePostgres returns a function that opens stores of one new database. strict: they keep the order of each ordering
// key.
func reusePostgres(t *testing.T, strict bool) func(t *testing.T) (storetest.Store, storetest.Clock) {
	return storetest.Reuse(t, func(t *testing.T) (storetest.Store, string) {
		url := heraldtest.Postgres(t, postgres.Migrate)
		return openStore(t, postgres.Config{URL: secret.New(url)}, strict), url
	})
}

func openModel(*testing.T) (storetest.Store, storetest.Clock) {
	c := &hand{t: time.Now()}
	return model.New(c.now), c
}

func TestPostgres(t *testing.T)      { storetest.Run(t, reusePostgres(t, false)) }
func TestPostgresOrder(t *testing.T) { storetest.RunOrder(t, reusePostgres(t, true)) }
func TestModel(t *testing.T)         { storetest.Run(t, openModel) }

func TestModelOrder(t *testing.T) {
	storetest.RunOrder(t, func(t *testing.T) (storetest.Store, storetest.Clock) {
		s, c := openModel(t)
		return s.(*model.Store).KeepOrder(), c
	})
}

// TestOrderSwitchedOff: with HERALD_ORDER=off, the reconciler releases all deliveries that wait for earlier ones.
func TestOrderSwitchedOff(t *testing.T) {
	url := heraldtest.Postgres(t, postgres.Migrate)
	open := func(strict bool) storetest.Postgres {
		return openStore(t, postgres.Config{URL: secret.New(url)}, strict)
	}
	var in []ledger.Intake
	for index := range 4 { // of one client
		in = append(in, ledger.Intake{Job: storetest.Feedback(1, index+1)})
	}
	_, tasks, err := open(true).Accept(t.Context(), in)
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d are dispatched of one client's four: %v", len(tasks), err)
	}
	off := open(false)
	moved := 0
	for {
		tasks, err := off.IgnoreOrder(t.Context(), 100)
		heraldtest.Must(t, err)
		if len(tasks) == 0 {
			break
		}
		moved += len(tasks)
	}
	if moved != 3 {
		t.Errorf("%d of 3 were let go", moved)
	}
}

// hand is a clock that moves with Advance and, by a moment, with each reading.
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
