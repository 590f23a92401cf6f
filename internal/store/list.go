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

// Delivery is a row as operators see it.
type Delivery struct {
	ID               uuid.UUID       `json:"id"`
	Key              string          `json:"key"`
	Seq              int64           `json:"seq"`
	Kind             string          `json:"kind"`
	ChainID          uint64          `json:"chainId"`
	IdentityRegistry string          `json:"identityRegistry"`
	AgentID          string          `json:"agentId"`
	Status           Status          `json:"status"`
	Reason           reason.Reason   `json:"reason,omitempty"`
	Error            string          `json:"error,omitempty"`
	Attempts         int             `json:"attempts"`
	Dispatch         int             `json:"dispatch"`
	NextAttemptAt    *time.Time      `json:"nextAttemptAt,omitempty"`
	ToolName         string          `json:"toolName,omitempty"`
	Endpoint         string          `json:"endpoint,omitempty"`
	FileVerification string          `json:"fileVerification,omitempty"`
	FileSource       string          `json:"fileSource,omitempty"`
	FileDisagrees    []string        `json:"fileDisagrees,omitempty"` // fields of the file that contradict the event
	CreatedAt        time.Time       `json:"createdAt"`
	UpdatedAt        time.Time       `json:"updatedAt"`
	FinishedAt       *time.Time      `json:"finishedAt,omitempty"`
	TraceID          string          `json:"traceId"`          // of its spans, and of the traceparent that the agent is sent
	Job              json.RawMessage `json:"job,omitempty"`    // Delivery only
	Result           json.RawMessage `json:"result,omitempty"` // Delivery only
	History          []Attempt       `json:"history,omitempty"`
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
	StepMicros []int32         `json:"stepMicros,omitempty"` // how long check, resolve, fetch, compose and call took, as far as it came
}

// maxRows is the most that a list returns at once: a page of 1,000 and the row that tells that there is another.
const maxRows = 1001

// Filter narrows a list. Zero fields do not narrow.
type Filter struct {
	ChainID     *uint64
	AgentID     string // decimal
	Client      string // 0x address of who wrote the feedback, lower-case
	Transaction string // 0x hash of the event's transaction, lower-case
	Key         string
	Status      Status
	Reason      reason.Reason
	Kind        string
	Since       time.Time // created at or after
	Until       time.Time // created before
	Before      int64     // only rows accepted before this Seq: the cursor
	Limit       int       // default 50, at most maxRows
}

const deliveryColumns = `id, key, seq, kind, chain_id, identity_registry, agent_id::text, status, coalesce(reason, ''),
	coalesce(error, ''), attempts, dispatch,
	CASE WHEN next_attempt_at < now() + interval '1 year' THEN next_attempt_at END, coalesce(tool_name, ''), coalesce(endpoint, ''),
	coalesce(file_verification, ''), coalesce(file_source, ''), file_disagrees, created_at, updated_at, finished_at,
	coalesce(traceparent, '')`

func scanDelivery(row pgx.CollectableRow) (d Delivery, err error) {
	err = d.scanRow(row)
	return d, err
}

// scanRow reads deliveryColumns, and what else was selected into more.
func (d *Delivery) scanRow(row pgx.Row, more ...any) error {
	var traceparent string
	columns := []any{&d.ID, &d.Key, &d.Seq, &d.Kind, &d.ChainID, &d.IdentityRegistry, &d.AgentID, &d.Status, &d.Reason,
		&d.Error, &d.Attempts, &d.Dispatch, &d.NextAttemptAt, &d.ToolName, &d.Endpoint,
		&d.FileVerification, &d.FileSource, &d.FileDisagrees, &d.CreatedAt, &d.UpdatedAt, &d.FinishedAt,
		&traceparent}
	err := row.Scan(append(columns, more...)...)
	d.TraceID = tracecontext.Of(d.ID, traceparent).TraceID.String()
	return err
}

// Deliveries lists deliveries, newest first. The next page starts before the last one's Seq.
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
		order = "seq + 0" // as in the index deliveries_client, or a plan could walk all deliveries for one who has few
	}
	if f.Before > 0 {
		n.addCondition(order+" <", f.Before)
	}
	args := append(n.args, min(cmp.Or(max(f.Limit, 0), 50), maxRows))
	rows, _ := s.pool.Query(ctx, `SELECT `+deliveryColumns+` FROM herald.deliveries`+n.whereClause()+
		` ORDER BY `+order+` DESC LIMIT $`+strconv.Itoa(len(args)), args...)
	return pgx.CollectRows(rows, scanDelivery)
}

// reasonStatuses are those in which a delivery can be for a reason that is looked for.
var reasonStatuses = []Status{Waiting, Held, Skipped, Rejected, Dead, Cancelled}

// deliveriesByReason lists those of a reason in any status: one list for each, since the index deliveries_reason has the
// order of seq within a status.
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

// narrow says which rows the filter means; Before and Limit are a page's, not the filter's.
func (f Filter) narrow() (n narrowing) {
	if f.ChainID != nil {
		n.addCondition("chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("agent_id::text =", f.AgentID) // the index deliveries_history
	}
	if f.Client != "" {
		n.addCondition("split_part(order_key, '/', 3) =", f.Client) // the index deliveries_client
	}
	if f.Transaction != "" {
		n.conditions = append(n.conditions, "job IS NOT NULL")
		n.addCondition("job ->> 'transactionHash' =", f.Transaction) // the index deliveries_transaction
	}
	if f.Key != "" {
		n.addCondition("key =", f.Key)
	}
	if f.Kind != "" {
		n.addCondition("kind =", f.Kind)
	}
	if f.Kind != "" && f.Kind != string(job.KindNewFeedback) {
		n.conditions = append(n.conditions, "kind <> 'NewFeedback'") // the index deliveries_kind
	}
	switch f.Status {
	case "":
	case Queued: // the index deliveries_queue
		n.conditions = append(n.conditions, "place IN ('line', 'out')", "status = 'queued'", "finished_at IS NULL")
	case Running: // the index deliveries_out
		n.conditions = append(n.conditions, "place = 'out'", "status = 'running'")
	case Waiting, Held, Skipped, Rejected, Dead, Cancelled:
		// As a constant, or the index deliveries_place would not be seen to fit.
		n.conditions = append(n.conditions, "place = '"+string(f.Status)+"'")
	default:
		n.addCondition("status =", f.Status)
	}
	if f.Reason != "" {
		n.addCondition("reason =", f.Reason)
	}
	if f.Reason != "" && f.Status == "" { // the index deliveries_reason; what is on its way has no reason to be looked for
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

// acceptSkew bounds how far created_at and seq may disagree about the order of rows. Transactions that accept side by side
// disagree by their duration, and Postgres' clock may have been behind by up to an hour, as after a failover to a machine
// whose clock is wrong.
const acceptSkew = time.Hour + 5*time.Minute

// narrowByTime is narrow with the bounds in time as bounds of seq too, by which lists are walked: there is no index on
// created_at, and a list of the last hour would read all that is older when fewer than a page are younger.
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

// firstSeqSince looks the first row up that was created at t or later, by halves; beyond the last one when there is
// none.
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

// narrowing holds only the conditions that narrow, so that Postgres plans each combination for the index that fits it.
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

// Count tells how many deliveries the filter means, by status; Before and Limit do not count.
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

// Stuck is how many deliveries do not move, for one reason.
type Stuck struct {
	Status Status // Held; the others are overdue
	Reason reason.Reason
	Count  int64
}

// overdueAfter is how late something must be before it counts: until then it may be on its way.
const overdueAfter = time.Minute

// ListStuck counts what is held, and what is overdue: a wait that is over, a task that nobody took, a lease that ran
// out.
func (s *Store) ListStuck(ctx context.Context) (stuck []Stuck, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count what is held or overdue")
	rows, _ := s.pool.Query(ctx, statement("stuck"), overdueAfter)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Stuck])
}

// DeliveryByKey reads the delivery that holds a key now: another one may have held it before, under the id that the key
// comes to (Delivery). ErrNotFound.
func (s *Store) DeliveryByKey(ctx context.Context, key string) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	var id uuid.UUID
	if err := s.pool.QueryRow(ctx, `SELECT id FROM herald.deliveries WHERE key = $1`, key).Scan(&id); err != nil {
		return d, fmt.Errorf("look up who holds %s: %w", key, noRows(err, ErrNotFound))
	}
	return s.Delivery(ctx, id)
}

// Blocker returns the delivery that the given one waits behind (behind_earlier): the open one of its ordering key with the
// lowest index, else the one of its ordering key that is dispatched. It returns ErrNotFound if there is neither.
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

// Delivery reads one delivery with its job, result and attempts. ErrNotFound.
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
