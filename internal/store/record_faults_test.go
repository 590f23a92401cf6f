package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// answers contains the results of concurrent calls of Record, by the index of their request.
type answers struct {
	recs []ledger.Recorded
	errs []error
	done []chan struct{}
	all  sync.WaitGroup
}

// recordTogether records the requests in one group, and returns when the group begins.
func recordTogether(t *testing.T, s *Store, requests []recordRequest) *answers {
	t.Helper()
	r := s.records
	flights, last := r.Flights, len(requests)-1
	r.Flights = 0 // so that requests queue, as if other groups were under way
	a := &answers{recs: make([]ledger.Recorded, len(requests)), errs: make([]error, len(requests)), done: make([]chan struct{}, len(requests))}
	for i, q := range requests {
		if i == last { // this request starts the group
			heraldtest.Await(t, "all others wait", func() bool { return r.Queued() == last })
			r.Flights = flights
		}
		a.done[i] = make(chan struct{})
		a.all.Go(func() {
			a.recs[i], a.errs[i] = s.Record(t.Context(), q.claim, q.outcome)
			close(a.done[i])
		})
	}
	heraldtest.Await(t, "the group begins", func() bool { return r.Queued() == 0 })
	return a
}

// groupStats returns the statistics of the groups so far.
func groupStats(s *Store) coalescer.Stats { return s.records.Stats() }

// claimAll accepts n deliveries of several agents, all dispatched, and claims them.
func claimAll(t *testing.T, s *Store, agents, n int) (requests []recordRequest) {
	t.Helper()
	for i := range n {
		task := acceptOne(t, s, feedback(i%agents, 1+i/agents))
		requests = append(requests, newRecordRequest(claim(t, s, task), delivered))
	}
	return requests
}

// TestGroupLeavesTheRest: in a group, some rows are lost, cancelled, deleted, locked or present twice. Their callers
// get the same results as alone, and the other callers do not wait for them.
func TestGroupLeavesTheRest(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	for _, n := range []int{1, 2, 7, 57} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := openStore(t, url) // with statistics of its own
			emptyStore(t, s)
			s.records.Min = 1
			requests := claimAll(t, s, 10, n+5) // the last five cannot be recorded in a group
			lapsed, late, cancelled, gone, locked := requests[n], requests[n+1], requests[n+2], requests[n+3], requests[n+4]
			requests[n].outcome = waiting(time.Hour)
			lapse(t, s, lapsed.claim)
			lapse(t, s, late.claim)
			if _, _, _, err := s.Cancel(t.Context(), []uuid.UUID{cancelled.claim.ID}, true); err != nil {
				t.Fatal(err)
			}
			exec(t, s, `DELETE FROM herald.deliveries WHERE id = $1`, gone.claim.ID)
			tx, err := s.Conns.Begin(t.Context())
			if err == nil {
				_, err = tx.Exec(t.Context(), `SELECT FROM herald.work WHERE id = $1 FOR UPDATE`, locked.claim.ID)
			}
			heraldtest.Must(t, err)
			defer tx.Rollback(context.Background())
			twice := requests[0]
			requests = append(requests, twice)

			got := recordTogether(t, s, requests)
			for i := range requests {
				if i != n+4 {
					heraldtest.Receive(t, "the answers of those whose rows are free", got.done[i])
				}
			}
			select {
			case <-got.done[n+4]:
				t.Error("a row that somebody has locked was recorded")
			default:
			}
			heraldtest.Must(t, tx.Rollback(t.Context()))
			got.all.Wait()

			ended := 0
			for i, q := range requests {
				err, d := got.errs[i], ledger.Delivery{}
				if i != n+3 {
					d = read(t, s, q.claim.ID)
				}
				switch i {
				case n: // lapsed
					if !errors.Is(err, ledger.ErrFenced) || d.Status != outcome.Queued {
						t.Errorf("a lost claim: %v, %s", err, d.Status)
					}
				case n + 2: // cancelled
					if !errors.Is(err, ledger.ErrFenced) || d.Status != outcome.Cancelled || d.History[0].Outcome != "delivered" {
						t.Errorf("what was cancelled: %v, %s, %+v", err, d.Status, d.History)
					}
				case n + 3: // deleted
					if !errors.Is(err, ledger.ErrFenced) {
						t.Errorf("a row that is not there: %v", err)
					}
				default:
					if err != nil || d.Status != outcome.Delivered || d.History[0].Outcome != "delivered" {
						t.Errorf("delivery %d of %d: %v, %s, %+v", i, n, err, d.Status, d.History)
					}
					ended++
				}
			}
			ended-- // one is in the group twice
			if sum := value[int](t, s, `SELECT sum((totals ->> 'delivered')::int)::int FROM herald.agents`); sum != ended {
				t.Errorf("%d are counted, want %d", sum, ended)
			}
			if stats := groupStats(s); stats.Groups != 1 || stats.Failed > 0 || stats.Grouped != len(requests) {
				t.Errorf("%+v", stats)
			}
		})
	}
}

// TestGroupGivesNextToOneCaller: each task that a group dispatches is returned once, to a caller that recorded a
// delivery of that agent. A caller that lost its claim gets no task and frees no slot.
func TestGroupGivesNextToOneCaller(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var requests []recordRequest
	for agent := 1; agent <= 3; agent++ {
		_, tasks := accept(t, s, feedbacks(agent, 1, ledger.MaxDispatchedPerAgent+10)...)
		for _, task := range tasks[:4] {
			requests = append(requests, newRecordRequest(claim(t, s, task), delivered))
		}
	}
	for i := range 4 { // the first agent's
		requests[i].outcome = waiting(time.Hour)
		lapse(t, s, requests[i].claim)
	}
	got := recordTogether(t, s, requests)
	got.all.Wait()
	seen := map[uuid.UUID]bool{}
	for i, rec := range got.recs {
		if i < 4 {
			if !errors.Is(got.errs[i], ledger.ErrFenced) || len(rec.Next) > 0 {
				t.Errorf("a lost claim: %+v, %v", rec, got.errs[i])
			}
			continue
		}
		if len(rec.Next) != 1 || got.errs[i] != nil {
			t.Errorf("%d: %+v, %v", i, rec, got.errs[i])
		}
		for _, next := range rec.Next {
			if seen[next.ID] || next.N != 1 || read(t, s, next.ID).Status != outcome.Queued {
				t.Errorf("%+v", next)
			}
			seen[next.ID] = true
		}
	}
	if n := countDispatched(t, s); n != ledger.MaxDispatchedPerAgent || len(seen) != 8 {
		t.Errorf("%d are dispatched of an agent, %d were given", n, len(seen))
	}
}

// TestPoisonedGroup: a row that makes the statement or the commit fail is the only one that fails.
func TestPoisonedGroup(t *testing.T) {
	t.Parallel()
	for when, trigger := range map[string]string{
		"statement": `CREATE TRIGGER refuse BEFORE UPDATE ON herald.history`,
		"commit":    `CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON herald.history DEFERRABLE INITIALLY DEFERRED`,
	} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			requests := claimAll(t, s, 5, 20)
			exec(t, s, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'poisoned'; END $$`)
			exec(t, s, fmt.Sprintf(`%s FOR EACH ROW WHEN (NEW.id = '%s') EXECUTE FUNCTION refuse()`, trigger, requests[7].claim.ID))
			got := recordTogether(t, s, requests)
			got.all.Wait()
			for i, q := range requests {
				if d := read(t, s, q.claim.ID); (i == 7) != (got.errs[i] != nil) || (i == 7) != (d.Status == outcome.Running) {
					t.Errorf("%d: %v, %s", i, got.errs[i], d.Status)
				}
			}
			if stats := groupStats(s); stats.Failed != 1 {
				t.Errorf("%+v", stats)
			}
		})
	}
}

// faultyNet makes connections on which one message is lost.
type faultyNet struct {
	armed  atomic.Pointer[fault]
	struck chan struct{} // closed when the message was lost
}

// fault drops the first write that contains mark. If committed is not nil, fault drops only the answer to it, after
// committed has returned.
type fault struct {
	mark      []byte
	committed func()
}

type faultyConn struct {
	net.Conn
	net    *faultyNet
	struck atomic.Pointer[fault]
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if f := c.net.armed.Load(); f != nil && bytes.Contains(p, f.mark) && c.net.armed.CompareAndSwap(f, nil) {
		c.struck.Store(f)
		close(c.net.struck)
		if f.committed == nil {
			return len(p), nil // no answer will arrive
		}
	}
	return c.Conn.Write(p)
}

func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p) // pgx reads in the background, so this read may have begun before the write
	if f := c.struck.Load(); f != nil && f.committed != nil {
		f.committed()
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// openFaulty opens a store whose connections use a faultyNet.
func openFaulty(t *testing.T, url string) (*Store, *faultyNet) {
	t.Helper()
	n := &faultyNet{struck: make(chan struct{})}
	s := openAdjusted(t, url, 12, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &faultyConn{Conn: conn, net: n}, err
		}
	})
	return s, n
}

// TestGroupWithUnknownCommit: the connection is lost after the server has committed. Each caller finds its own record,
// and nothing is written twice.
func TestGroupWithUnknownCommit(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	plain := openStore(t, url)
	s, faulty := openFaulty(t, url)
	requests := claimAll(t, s, 4, 16)
	for i := range requests {
		if i%4 == 1 {
			requests[i].outcome = waiting(time.Hour)
		}
	}
	running := func() int {
		return value[int](t, plain, `SELECT count(*)::int FROM herald.deliveries WHERE status = 'running'`)
	}
	atOnce := -1
	id := requests[0].claim.ID
	// pgx reads once more from a broken connection, to close it, in a goroutine of its own.
	faulty.armed.Store(&fault{mark: id[:], committed: sync.OnceFunc(func() {
		heraldtest.Await(t, "the commit", func() bool { return running() < len(requests) })
		atOnce = running()
	})})
	got := recordTogether(t, s, requests)
	got.all.Wait()
	if stats := groupStats(s); stats.Failed != 1 || atOnce != 0 {
		t.Fatalf("%+v, %d were not committed with the group", stats, atOnce)
	}
	for i, q := range requests {
		d := read(t, plain, q.claim.ID)
		if got.errs[i] != nil || d.Status != q.outcome.Status || len(d.History) != 1 || d.History[0].Outcome != string(q.outcome.Status) {
			t.Errorf("%d: %v, %+v", i, got.errs[i], d)
		}
		if task := got.recs[i].Task; (task != nil) != (d.Status == outcome.Waiting) || task != nil && (task.N != 1 || d.Dispatch != 1) {
			t.Errorf("%d: task %+v", i, task)
		}
	}
	if sum := value[int](t, plain, `SELECT sum((totals ->> 'delivered')::int)::int FROM herald.agents`); sum != 12 {
		t.Errorf("%d are counted", sum)
	}
}

// TestStalledGroup: a connection without answers delays only its own group, until the group times out.
func TestStalledGroup(t *testing.T) {
	t.Parallel()
	s, faulty := openFaulty(t, heraldtest.Postgres(t, postgres.Migrate))
	s.records.Timeout = 4 * time.Second
	requests := claimAll(t, s, 8, 16)
	id := requests[3].claim.ID
	faulty.armed.Store(&fault{mark: id[:]})
	got := recordTogether(t, s, requests[:12])
	heraldtest.Receive(t, "the stall", faulty.struck)
	for _, q := range requests[12:] {
		record(t, s, q.claim, q.outcome)
	}
	got.all.Wait()
	for i, q := range requests {
		if d := read(t, s, q.claim.ID); i < 12 && got.errs[i] != nil || d.Status != outcome.Delivered {
			t.Errorf("%d: %v", i, d.Status)
		}
	}
	if stats := groupStats(s); stats.Failed != 1 {
		t.Errorf("%+v", stats)
	}
}
