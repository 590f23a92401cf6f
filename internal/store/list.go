package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Delivery is a row of herald.deliveries as operators see it. Job, Result and History are set by Store.Delivery only,
// not in lists.
type Delivery struct {
	ID               uuid.UUID     `json:"id"`
	Key              string        `json:"key"`
	Seq              int64         `json:"seq"`
	Kind             string        `json:"kind"`
	ChainID          uint64        `json:"chainId"`
	IdentityRegistry string        `json:"identityRegistry"`
	AgentID          string        `json:"agentId"`
	Status           Status        `json:"status"`
	Reason           reason.Reason `json:"reason,omitempty"`
	Error            string        `json:"error,omitempty"`
	Attempts         int           `json:"attempts"`
	Dispatch         int           `json:"dispatch"`
	NextAttemptAt    *time.Time    `json:"nextAttemptAt,omitempty"`
	ToolName         string        `json:"toolName,omitempty"`
	Endpoint         string        `json:"endpoint,omitempty"`
	FileVerification string        `json:"fileVerification,omitempty"`
	FileSource       string        `json:"fileSource,omitempty"`
	FileDisagrees    []string      `json:"fileDisagrees,omitempty"` // fields of the file that contradict the event
	Verified         bool          `json:"verified"`                // workers verified the chain's events at acceptance
	Corrected        []string      `json:"corrected,omitempty"`     // fields of the jobs that the event contradicts
	CreatedAt        time.Time     `json:"createdAt"`
	UpdatedAt        time.Time     `json:"updatedAt"`
	FinishedAt       *time.Time    `json:"finishedAt,omitempty"`
	// TraceID is the trace of its spans, and of the traceparent that is sent to the agent.
	TraceID string          `json:"traceId"`
	Job     json.RawMessage `json:"job,omitempty"`    // set by Delivery only
	Result  json.RawMessage `json:"result,omitempty"` // set by Delivery only
	History []Attempt       `json:"history,omitempty"`
}

// Attempt is one try at a delivery. Its fields are in the order in which Delivery selects them.
type Attempt struct {
	Number     int             `json:"number"`
	StartedAt  time.Time       `json:"startedAt"`
	DurationMs *int            `json:"durationMs,omitempty"`
	Stage      string          `json:"stage"`
	Outcome    string          `json:"outcome,omitempty"` // empty: running, or its process died
	Reason     reason.Reason   `json:"reason,omitempty"`
	Error      string          `json:"error,omitempty"`
	Arguments  json.RawMessage `json:"arguments,omitempty"`
	Response   json.RawMessage `json:"response,omitempty"`
	Protocol   string          `json:"protocol,omitempty"`
	// StepMicros are the durations of check, resolve, fetch, compose and call in µs, up to the last step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
}

// maxRows is the maximum length of a list: a page of 1,000 rows, and one more row to detect a next page.
const maxRows = 1001

// Filter selects deliveries. Zero fields do not restrict the list.
type Filter struct {
	ChainID     *uint64
	AgentID     string // decimal
	Client      string // 0x address of the client that wrote the feedback, lower-case
	Transaction string // 0x hash of the event's transaction, lower-case
	Key         string
	Status      Status
	Reason      reason.Reason
	Kind        string
	Since       time.Time // created at or after
	Until       time.Time // created before
	Before      int64     // if positive, only deliveries with a lower Seq: the last Seq of the previous page
	Limit       int       // default 50, at most maxRows
}

const deliveryColumns = `id, key, seq, kind, chain_id, identity_registry, agent_id::text, status, coalesce(reason, ''),
	coalesce(error, ''), attempts, dispatch,
	CASE WHEN next_attempt_at < now() + interval '1 year' THEN next_attempt_at END, coalesce(tool_name, ''), coalesce(endpoint, ''),
	coalesce(file_verification, ''), coalesce(file_source, ''), file_disagrees, verified, corrected, created_at, updated_at,
	finished_at, 	coalesce(traceparent, '')`

func scanDelivery(row pgx.CollectableRow) (d Delivery, err error) {
	err = d.scanRow(row)
	return d, err
}

// scanRow scans a row: deliveryColumns into d, and the columns after them into the pointers more.
func (d *Delivery) scanRow(row pgx.Row, more ...any) error {
	var traceparent string
	columns := []any{&d.ID, &d.Key, &d.Seq, &d.Kind, &d.ChainID, &d.IdentityRegistry, &d.AgentID, &d.Status, &d.Reason,
		&d.Error, &d.Attempts, &d.Dispatch, &d.NextAttemptAt, &d.ToolName, &d.Endpoint,
		&d.FileVerification, &d.FileSource, &d.FileDisagrees, &d.Verified, &d.Corrected, &d.CreatedAt, &d.UpdatedAt, &d.FinishedAt,
		&traceparent}
	err := row.Scan(append(columns, more...)...)
	d.TraceID = tracecontext.Of(d.ID, traceparent).TraceID.String()
	return err
}

// Deliveries lists the deliveries that match the filter, newest (highest Seq) first, at most f.Limit. For the next
// page, set f.Before to the Seq of the last delivery.
func (s *Store) Deliveries(ctx context.Context, f Filter) (list []Delivery, err error) {
	if f.Reason != "" && f.Status == "" {
		return s.deliveriesByReason(ctx, f)
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list deliveries")
	n, err := s.narrowByTime(ctx, f)
	if err != nil {
		return nil, err
	}
	order := "seq"
	if f.Client != "" || f.Transaction != "" {
		order = "seq + 0" // matches deliveries_client; otherwise Postgres might read all deliveries for a client that has few
	}
	if f.Before > 0 {
		n.addCondition(order+" <", f.Before)
	}
	args := append(n.args, min(cmp.Or(max(f.Limit, 0), 50), maxRows))
	rows, _ := s.pool.Query(ctx, `SELECT `+deliveryColumns+` FROM herald.deliveries`+n.whereClause()+
		` ORDER BY `+order+` DESC LIMIT $`+strconv.Itoa(len(args)), args...)
	return pgx.CollectRows(rows, scanDelivery)
}

// reasonStatuses are the statuses that can have a reason.
var reasonStatuses = []Status{Waiting, Held, Skipped, Rejected, Dead, Cancelled}

// deliveriesByReason is Deliveries for a filter with a reason and no status. It reads one list for each of
// reasonStatuses and merges them, because the index deliveries_reason is ordered by seq only within a status.
func (s *Store) deliveriesByReason(ctx context.Context, f Filter) (all []Delivery, err error) {
	for _, f.Status = range reasonStatuses {
		list, err := s.Deliveries(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b Delivery) int { return cmp.Compare(b.Seq, a.Seq) })
	return all[:min(len(all), cmp.Or(max(f.Limit, 0), 50), maxRows)], nil
}

// narrow returns the filter as SQL conditions. It ignores Before and Limit, which select a page.
func (f Filter) narrow() (n narrowing) {
	if f.ChainID != nil {
		n.addCondition("chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("agent_id::text =", f.AgentID) // uses the index deliveries_history
	}
	if f.Client != "" {
		n.addCondition("split_part(order_key, '/', 3) =", f.Client) // uses the index deliveries_client
	}
	if f.Transaction != "" {
		n.conditions = append(n.conditions, "job IS NOT NULL")
		n.addCondition("job ->> 'transactionHash' =", f.Transaction) // uses the index deliveries_transaction
	}
	if f.Key != "" {
		n.addCondition("key =", f.Key)
	}
	if f.Kind != "" {
		n.addCondition("kind =", f.Kind)
	}
	if f.Kind != "" && f.Kind != string(job.KindNewFeedback) {
		n.conditions = append(n.conditions, "kind <> 'NewFeedback'") // uses the index deliveries_kind
	}
	switch f.Status {
	case "":
	case Queued: // uses the index deliveries_queue
		n.conditions = append(n.conditions, "place IN ('line', 'out')", "status = 'queued'", "finished_at IS NULL")
	case Running: // uses the index deliveries_out
		n.conditions = append(n.conditions, "place = 'out'", "status = 'running'")
	case Waiting, Held, Skipped, Rejected, Dead, Cancelled:
		// A constant, because with a parameter Postgres would not use the index deliveries_place.
		n.conditions = append(n.conditions, "place = '"+string(f.Status)+"'")
	default:
		n.addCondition("status =", f.Status)
	}
	if f.Reason != "" {
		n.addCondition("reason =", f.Reason)
	}
	if f.Reason != "" && f.Status == "" { // uses deliveries_reason, which has only these statuses
		n.conditions = append(n.conditions, "place IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled')")
	}
	if !f.Since.IsZero() {
		n.addCondition("created_at >=", f.Since)
	}
	if !f.Until.IsZero() {
		n.addCondition("created_at <", f.Until)
	}
	return n
}

// acceptSkew is how much later created_at may be in a row with a lower seq than in one with a higher seq. Transactions
// that ran at once may differ by their duration, and Postgres' clock may have been wrong by up to an hour, for example
// after a failover.
const acceptSkew = time.Hour + 5*time.Minute

// narrowByTime is narrow with further conditions that bound seq according to Since and Until. Postgres reads lists in
// the order of seq and has no index on created_at. Without these bounds, a list of the last hour with less than a page
// of matching rows would read all older rows.
func (s *Store) narrowByTime(ctx context.Context, f Filter) (n narrowing, err error) {
	n = f.narrow()
	if !f.Since.IsZero() {
		first, err := s.firstSeqSince(ctx, f.Since.Add(-acceptSkew))
		if err != nil {
			return n, err
		}
		n.addCondition("seq >=", first)
	}
	if !f.Until.IsZero() {
		last, err := s.firstSeqSince(ctx, f.Until.Add(acceptSkew))
		if err != nil {
			return n, err
		}
		n.addCondition("seq <", last)
	}
	return n, nil
}

// firstSeqSince finds a bound of seq by binary search: rows with a lower seq were created before t. It assumes that
// created_at grows with seq (see acceptSkew). The result is above every seq if all rows are older than t.
func (s *Store) firstSeqSince(ctx context.Context, t time.Time) (int64, error) {
	var low, high int64
	err := s.pool.QueryRow(ctx, `SELECT coalesce((SELECT seq FROM herald.deliveries ORDER BY seq LIMIT 1), 0),
		coalesce((SELECT seq FROM herald.deliveries ORDER BY seq DESC LIMIT 1), 0) + 1`).Scan(&low, &high)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var seq int64
		var created time.Time
		err = s.pool.QueryRow(ctx, `SELECT seq, created_at FROM herald.deliveries WHERE seq >= $1 ORDER BY seq LIMIT 1`,
			middle).Scan(&seq, &created)
		switch {
		case err != nil:
		case created.Before(t):
			low = seq + 1
		default:
			high = middle
		}
	}
	return low, err
}

// narrowing collects the conditions of a WHERE clause and their arguments. It contains only conditions that the filter
// sets, so that Postgres chooses an index for each combination.
type narrowing struct {
	conditions []string
	args       []any
}

func (n *narrowing) addCondition(condition string, arg any) {
	n.args = append(n.args, arg)
	n.conditions = append(n.conditions, condition+" $"+strconv.Itoa(len(n.args)))
}

func (n *narrowing) whereClause() string {
	if len(n.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(n.conditions, " AND ")
}

// Count counts the deliveries that match the filter, by status. It ignores Before and Limit.
func (s *Store) Count(ctx context.Context, f Filter) (counts map[Status]int64, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count deliveries")
	n, err := s.narrowByTime(ctx, f)
	if err != nil {
		return nil, err
	}
	rows, _ := s.pool.Query(ctx, `SELECT status, count(*) FROM herald.deliveries`+n.whereClause()+` GROUP BY status`, n.args...)
	counts = make(map[Status]int64)
	var status Status
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&status, &count}, func() error {
		counts[status] = count
		return nil
	})
	return counts, err
}

// Stuck is a number of held or overdue deliveries that have the same status and reason.
type Stuck struct {
	Status Status // Held, or the status of deliveries that are overdue
	Reason reason.Reason
	Count  int64
}

// overdueAfter is how long after its due time ListStuck counts a delivery as overdue.
const overdueAfter = time.Minute

// ListStuck counts held and overdue deliveries, by status and reason. A delivery is overdue if, for overdueAfter, its
// wait has been over, its task has not been claimed, or its lease has been expired.
func (s *Store) ListStuck(ctx context.Context) (stuck []Stuck, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count held and overdue deliveries")
	rows, _ := s.pool.Query(ctx, statement("stuck"), overdueAfter)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Stuck])
}

// DeliveryByKey reads the delivery that has the key now, as Delivery does. Its id may differ from job.IDOf(key),
// because another delivery may have had the key before a reorg. It returns ErrNotFound if no delivery has the key.
func (s *Store) DeliveryByKey(ctx context.Context, key string) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	var id uuid.UUID
	if err := s.pool.QueryRow(ctx, `SELECT id FROM herald.deliveries WHERE key = $1`, key).Scan(&id); err != nil {
		return d, fmt.Errorf("look up the row with %s: %w", key, noRows(err, ErrNotFound))
	}
	return s.Delivery(ctx, id)
}

// Blocker returns the delivery that the delivery id waits for (behind_earlier). Among the deliveries of the same
// ordering key, that is the open one with the lowest index, else the dispatched one. It returns ErrNotFound if neither
// exists.
func (s *Store) Blocker(ctx context.Context, id uuid.UUID) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	var blocker *uuid.UUID
	if err := s.pool.QueryRow(ctx, statement("blocker"), id).Scan(&blocker); err != nil {
		return d, fmt.Errorf("find the delivery that %s waits behind: %w", id, noRows(err, ErrNotFound))
	}
	if blocker == nil {
		return d, ErrNotFound
	}
	return s.Delivery(ctx, *blocker)
}

// Delivery reads one delivery with its job, result and attempts. It returns ErrNotFound if the delivery does not exist.
func (s *Store) Delivery(ctx context.Context, id uuid.UUID) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read delivery %s", id)
	b := &pgx.Batch{}
	b.Queue(`SELECT `+deliveryColumns+`, job, result FROM herald.deliveries WHERE id = $1`, id).
		QueryRow(func(row pgx.Row) error { return d.scanRow(row, &d.Job, &d.Result) })
	b.Queue(`SELECT number, started_at, duration_ms, stage, coalesce(outcome, ''), coalesce(reason, ''),
	                coalesce(error, ''), arguments, response, coalesce(protocol, ''), step_us
	           FROM herald.attempts WHERE delivery_id = $1 ORDER BY number, started_at`, id).
		Query(func(rows pgx.Rows) (err error) {
			d.History, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
			return err
		})
	return d, noRows(s.pool.SendBatch(ctx, b).Close(), ErrNotFound)
}
