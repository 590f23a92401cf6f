package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Aging returns the clock of a Postgres store. It lets time pass by making all rows older.
func Aging(t *testing.T, url string) Clock { return aging{t, url} }

type aging struct {
	t   *testing.T
	url string
}

// Advance does not change attempts, because claims contain the start of their own.
func (a aging) Advance(d time.Duration) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, a.url)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close(ctx)
	b := &pgx.Batch{}
	b.Queue(`WITH agents AS (UPDATE herald.agents SET last_ok_at = last_ok_at - $1::interval,
			last_called_at = last_called_at - $1::interval, failing_since = failing_since - $1::interval,
			hour = hour - date_trunc('hour', $1::interval))
		UPDATE herald.work SET lease_until = lease_until - $1::interval, next_attempt_at = next_attempt_at - $1, handed_at = handed_at - $1,
		accepted_at = accepted_at - $1, updated_at = updated_at - $1, delays_until = delays_until - $1`, d)
	b.Queue(`UPDATE herald.history SET accepted_at = accepted_at - $1::interval, created_at = created_at - $1, updated_at = updated_at - $1,
		finished_at = finished_at - $1`, d)
	// Moves the hours by the whole hours of d, in two steps through another century: moved in one step, a row could
	// collide with one that has not moved yet.
	const ages = `interval '100 years'`
	b.Queue(`UPDATE herald.agent_hours SET hour = hour - ` + ages)
	b.Queue(`UPDATE herald.agent_hours SET hour = hour + `+ages+` - date_trunc('hour', $1::interval)`, d)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		a.t.Fatal(err)
	}
}
