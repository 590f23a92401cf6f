package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// Reuse returns a function for Run and RunOrder. The function returns the emptied store of an ended test, or calls open
// if no store is free. A test spends ten times less on an emptied store than on a new database and new sessions. open's
// t is the test of the whole suite. All stores have to use one schema.
func Reuse[S any](t *testing.T, open func(t *testing.T) (s S, url string)) func(t *testing.T) (S, Clock) {
	type opened struct {
		store S
		clock aging
	}
	var mu sync.Mutex
	var free []opened
	return func(test *testing.T) (S, Clock) {
		mu.Lock()
		defer mu.Unlock()
		var o opened
		if last := len(free) - 1; last >= 0 {
			o, free = free[last], free[:last]
		} else {
			s, url := open(t)
			o = opened{s, newAging(t, url)}
		}
		o.clock.t = test
		test.Cleanup(func() {
			if test.Failed() {
				return // a statement of the test may still run
			}
			o.clock.deleteRows()
			mu.Lock()
			defer mu.Unlock()
			free = append(free, o)
		})
		return o.store, o.clock
	}
}

// Aging returns the clock of a Postgres store. It lets time pass by making all rows older.
func Aging(t *testing.T, url string) Clock { return newAging(t, url) }

func newAging(t *testing.T, url string) aging {
	t.Helper()
	return aging{t, heraldtest.Connect(t, url)}
}

type aging struct {
	t    *testing.T
	conn *pgx.Conn
}

// Advance does not change the start of attempts, because each claim contains the start of its attempt.
func (a aging) Advance(d time.Duration) {
	a.t.Helper()
	b := &pgx.Batch{}
	b.Queue(`WITH agents AS (UPDATE herald.agents SET last_ok_at = last_ok_at - $1::interval,
			last_called_at = last_called_at - $1::interval, failing_since = failing_since - $1::interval,
			hour = hour - date_trunc('hour', $1::interval))
		UPDATE herald.work SET lease_until = lease_until - $1::interval, next_attempt_at = next_attempt_at - $1, handed_at = handed_at - $1,
		accepted_at = accepted_at - $1, updated_at = updated_at - $1, delays_until = delays_until - $1`, d)
	b.Queue(`UPDATE herald.history SET accepted_at = accepted_at - $1::interval, created_at = created_at - $1, updated_at = updated_at - $1,
		finished_at = finished_at - $1`, d)
	// Moves the hours by the whole hours of d. In one step, a row could collide with one that has not moved yet, so all
	// rows first move to another century.
	const ages = `interval '100 years'`
	b.Queue(`UPDATE herald.agent_hours SET hour = hour - ` + ages)
	b.Queue(`UPDATE herald.agent_hours SET hour = hour + `+ages+` - date_trunc('hour', $1::interval)`, d)
	heraldtest.Must(a.t, a.conn.SendBatch(a.t.Context(), b).Close())
}

// deleteRows deletes all rows of the ledger.
func (a aging) deleteRows() {
	_, err := a.conn.Exec(context.Background(), `DO $$ DECLARE r regclass; BEGIN
		FOR r IN SELECT oid FROM pg_class WHERE relnamespace = 'herald'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
			AND relname <> 'migrations' LOOP
			EXECUTE format('DELETE FROM %s', r);
		END LOOP; END $$`)
	heraldtest.Must(a.t, err)
}
