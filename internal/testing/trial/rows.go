package trial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Row is a delivery in Postgres.
type Row struct {
	ID         uuid.UUID
	AgentID    string
	Status     string
	Reason     string
	Attempts   int
	Dispatch   int
	CreatedAt  time.Time
	FinishedAt time.Time // zero if the delivery is not final
}

// Final reports whether the delivery has ended.
func (r Row) Final() bool { return slices.Contains(finals, r.Status) }

var finals = []string{"delivered", "skipped", "rejected", "dead", "cancelled"}

// Rows reads all deliveries.
func (s *Site) Rows(ctx context.Context) (rows map[uuid.UUID]Row, err error) {
	err = s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows = map[uuid.UUID]Row{}
		found, err := c.Query(ctx, `SELECT id, agent_id::text, status, coalesce(reason, ''), attempts, dispatch, created_at, finished_at FROM herald.deliveries`)
		if err != nil {
			return err
		}
		var r Row
		var finished *time.Time
		_, err = pgx.ForEachRow(found, []any{&r.ID, &r.AgentID, &r.Status, &r.Reason, &r.Attempts, &r.Dispatch, &r.CreatedAt, &finished}, func() error {
			r.FinishedAt = time.Time{}
			if finished != nil {
				r.FinishedAt = *finished
			}
			rows[r.ID] = r
			return nil
		})
		return err
	})
	return rows, err
}

// CountOpen returns the number of deliveries that have not ended.
func (s *Site) CountOpen(ctx context.Context) (n int, err error) {
	err = s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT count(*) FROM herald.deliveries WHERE status <> ALL($1)`, finals).Scan(&n)
	})
	return n, err
}

// AwaitFinal waits until every delivery has ended.
func (s *Site) AwaitFinal(ctx context.Context) error {
	open := -1
	err := Until(ctx, pollSlow, "every delivery to end", func() (bool, error) {
		n, err := s.CountOpen(ctx)
		if err == nil {
			open = n
		}
		return n == 0, err
	})
	if err != nil {
		return fmt.Errorf("%d have not ended: %w", open, err)
	}
	return nil
}

// Attempt is one attempt at a delivery in Postgres.
type Attempt struct {
	Number    int
	StartedAt time.Time
	Took      time.Duration
	Outcome   string // empty while it is running, or if its worker ended
	Reason    string
}

// Attempts reads the attempts at a delivery, oldest first.
func (s *Site) Attempts(ctx context.Context, id uuid.UUID) (attempts []Attempt, err error) {
	err = s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		found, err := c.Query(ctx, `SELECT number, started_at, coalesce(duration_ms, 0), coalesce(outcome, ''), coalesce(reason, '')
			FROM herald.attempts WHERE delivery_id = $1
			UNION ALL SELECT attempts, claimed_at, 0, '', '' FROM herald.work WHERE id = $1 AND status = 'running'
			ORDER BY number, started_at`, id)
		if err != nil {
			return err
		}
		attempts, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (a Attempt, err error) {
			var ms int
			err = row.Scan(&a.Number, &a.StartedAt, &ms, &a.Outcome, &a.Reason)
			a.Took = time.Duration(ms) * time.Millisecond
			return a, err
		})
		return err
	})
	return attempts, err
}

// Lost returns the accepted deliveries that are missing, have not ended, or are delivered without a call.
func Lost(accepted []uuid.UUID, rows map[uuid.UUID]Row, calls Calls) []uuid.UUID {
	called := calls.ByDelivery()
	return slices.DeleteFunc(slices.Clone(accepted), func(id uuid.UUID) bool {
		r, there := rows[id]
		return there && r.Final() && (r.Status != "delivered" || len(called[id]) > 0)
	})
}

// CountStatus counts rows by status, and by reason if there is one: "dead outcome_unknown".
func CountStatus(rows map[uuid.UUID]Row) map[string]int {
	out := map[string]int{}
	for _, r := range rows {
		what := r.Status
		if r.Reason != "" {
			what += " " + r.Reason
		}
		out[what]++
	}
	return out
}
