package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Aging is the clock of a store in Postgres: time passes by everything in the tables becoming older.
func Aging(t *testing.T, url string) Clock { return aging{t, url} }

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
	b := &pgx.Batch{}
	b.Queue(`WITH agents AS (UPDATE herald.agents SET last_ok_at = last_ok_at - $1::interval,
			last_called_at = last_called_at - $1::interval, failing_since = failing_since - $1::interval,
			hour = hour - date_trunc('hour', $1::interval))
		UPDATE herald.deliveries SET lease_until = lease_until - $1::interval, next_attempt_at = next_attempt_at - $1,
		handed_at = handed_at - $1, accepted_at = accepted_at - $1, created_at = created_at - $1, updated_at = updated_at - $1,
		finished_at = finished_at - $1, holds_until = holds_until - $1`, d)
	// By as many hours as d has, and by way of another age: one row after the other would run into those that are still
	// to go.
	const ages = `interval '100 years'`
	b.Queue(`UPDATE herald.agent_hours SET hour = hour - ` + ages)
	b.Queue(`UPDATE herald.agent_hours SET hour = hour + `+ages+` - date_trunc('hour', $1::interval)`, d)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		a.t.Fatal(err)
	}
}
