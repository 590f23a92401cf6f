package records

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// Depth has the number of open deliveries by status, and how late the most overdue delivery is. A delivery is overdue
// if its wait has ended, if its task was dispatched and is not claimed, or if its lease has expired.
type Depth struct {
	ByStatus map[outcome.Status]int64
	Overdue  time.Duration
}

// maxDepth bounds the deliveries that Depth and ListStuck count. Strangers can make more than could be counted while a
// scrape waits. Where rows are read, not only an index, half as many count.
const maxDepth = 1_000_000

// Depth counts the open deliveries, for the metrics: of the backlog, of those that wait with and without a task, and of
// the held ones up to maxDepth each. It reads the open deliveries through an index.
func (s *Store) Depth(ctx context.Context) (d Depth, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count open deliveries")
	defer end()
	d.ByStatus = map[outcome.Status]int64{outcome.Queued: 0, outcome.Running: 0, outcome.Waiting: 0, outcome.Held: 0}
	rows, _ := s.db.Conns.Query(ctx, statements.Text("depth"), maxDepth)
	var status outcome.Status
	var n int64
	var late float64
	_, err = pgx.ForEachRow(rows, []any{&status, &n, &late}, func() error {
		d.ByStatus[status] = n
		d.Overdue = max(d.Overdue, time.Duration(late*float64(time.Second)))
		return nil
	})
	return d, err
}
