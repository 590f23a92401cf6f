package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// Query reads the rows of a query on the site's database with scan.
func Query[T any](ctx context.Context, s *Site, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sql, args...) // CollectRows returns its error
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	return all, err
}

// QueryOne reads the only row of a query on the site's database with scan.
func QueryOne[T any](ctx context.Context, s *Site, scan pgx.RowToFunc[T], sql string, args ...any) (one T, err error) {
	err = s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sql, args...) // CollectExactlyOneRow returns its error
		one, err = pgx.CollectExactlyOneRow(rows, scan)
		return err
	})
	return one, err
}

// Exec runs a statement on the site's database.
func (s *Site) Exec(ctx context.Context, sql string, args ...any) error {
	return s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// Rows reads all deliveries.
func (s *Site) Rows(ctx context.Context) (map[uuid.UUID]Row, error) {
	all, err := Query(ctx, s, pgx.RowToStructByPos[Row], `SELECT id, agent_id::text, status, coalesce(reason, ''),
		attempts, dispatch, created_at, coalesce(finished_at, '0001-01-01 00:00:00+00') FROM herald.deliveries`)
	rows := make(map[uuid.UUID]Row, len(all))
	for _, r := range all {
		rows[r.ID] = r
	}
	return rows, err
}

// CountOpen returns the number of deliveries that have not ended.
func (s *Site) CountOpen(ctx context.Context) (int, error) {
	return QueryOne(ctx, s, pgx.RowTo[int], `SELECT count(*) FROM herald.deliveries WHERE status <> ALL($1)`, finals)
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
func (s *Site) Attempts(ctx context.Context, id uuid.UUID) ([]Attempt, error) {
	return Query(ctx, s, pgx.RowToStructByPos[Attempt], `SELECT number, started_at,
		coalesce(duration_ms, 0) * interval '1 ms', coalesce(outcome, ''), coalesce(reason, '')
		FROM herald.attempts WHERE delivery_id = $1
		UNION ALL SELECT attempts, claimed_at, interval '0', '', '' FROM herald.work WHERE id = $1 AND status = 'running'
		ORDER BY number, started_at`, id)
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
		out[strings.TrimSpace(r.Status+" "+r.Reason)]++
	}
	return out
}
