package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Delivery is a delivery as operators see it. Lists leave Job, Result and History empty; the method Delivery sets them.
type Delivery struct {
	ID               uuid.UUID      `json:"id"`
	Key              string         `json:"key"`
	Seq              int64          `json:"seq"`
	Kind             string         `json:"kind"`
	ChainID          uint64         `json:"chainId"`
	IdentityRegistry string         `json:"identityRegistry"`
	AgentID          string         `json:"agentId"`
	Status           Status         `json:"status"`
	Reason           outcome.Reason `json:"reason,omitempty"`
	Error            string         `json:"error,omitempty"`
	Attempts         int            `json:"attempts"`
	Dispatch         int            `json:"dispatch"`
	NextAttemptAt    *time.Time     `json:"nextAttemptAt,omitempty"`
	ToolName         string         `json:"toolName,omitempty"`
	Endpoint         string         `json:"endpoint,omitempty"`
	FileVerification string         `json:"fileVerification,omitempty"`
	FileSource       string         `json:"fileSource,omitempty"`
	FileDisagrees    []string       `json:"fileDisagrees,omitempty"` // fields of the file that contradict the event
	// Verified: workers verified events of the delivery's chain when the job was accepted, so they check this event
	// before the call.
	Verified   bool       `json:"verified"`
	Corrected  []string   `json:"corrected,omitempty"` // fields in which sent jobs differ from the event
	CreatedAt  time.Time  `json:"createdAt"`
	UpdatedAt  time.Time  `json:"updatedAt"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	// TraceID is the id of the trace (W3C Trace Context) that contains the delivery's spans. The agent gets it with the
	// call.
	TraceID string          `json:"traceId"`
	Job     json.RawMessage `json:"job,omitempty"`    // set by Delivery only
	Result  json.RawMessage `json:"result,omitempty"` // set by Delivery only
	History []Attempt       `json:"history,omitempty"`
}

// Attempt is one attempt to deliver, as operators see it. Its fields are in the order in which the method Delivery
// selects them.
type Attempt struct {
	Number     int             `json:"number"`
	StartedAt  time.Time       `json:"startedAt"`
	DurationMs *int            `json:"durationMs,omitempty"`
	Stage      string          `json:"stage"`
	Outcome    string          `json:"outcome,omitempty"` // empty: the attempt runs, or its outcome is unknown
	Reason     outcome.Reason  `json:"reason,omitempty"`
	Error      string          `json:"error,omitempty"`
	Arguments  json.RawMessage `json:"arguments,omitempty"`
	Response   json.RawMessage `json:"response,omitempty"`
	Protocol   string          `json:"protocol,omitempty"`
	// StepMicros has the durations of the steps check, resolve, fetch, connect, compose and call in µs, up to the last
	// step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
}

// maxRows is the maximum length of a list: a page of 1,000 rows, and one more row that shows that a next page exists.
const maxRows = 1001

// Filter selects deliveries. Fields with zero values do not restrict the list.
type Filter struct {
	ChainID     *uint64
	AgentID     string // decimal
	Client      string // 0x address of the client that wrote the feedback, lower-case
	Transaction string // 0x hash of the event's transaction, lower-case
	Key         string
	Status      Status
	Reason      outcome.Reason
	Kind        string
	Since       time.Time // earliest time of creation
	Until       time.Time // created before this time
	Before      int64     // if positive, selects lower values of Seq; for the next page, the last Seq of this one
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

// scanRow scans a row into d: first the deliveryColumns, and then further columns into the pointers in more.
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

// Deliveries lists the deliveries that match the filter, newest (highest Seq) first. For the next page, set f.Before to
// the Seq of the last delivery.
func (s *Store) Deliveries(ctx context.Context, f Filter) (list []Delivery, err error) {
	if f.Reason != "" && f.Status == "" {
		return s.deliveriesByReason(ctx, f)
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list deliveries")
	limit := min(cmp.Or(max(f.Limit, 0), 50), maxRows)
	for _, table := range f.tables() {
		order := "seq"
		if f.Client != "" && table == endedDeliveries || f.Transaction != "" {
			order = "seq + 0" // so that Postgres uses the index of the condition, and does not search all rows by seq
		}
		n, err := s.narrowByTime(ctx, f)
		if err != nil {
			return nil, err
		}
		if f.Before > 0 {
			n.addCondition(order+" <", f.Before)
		}
		args := append(n.args, limit)
		rows, _ := s.pool.Query(ctx, `SELECT `+deliveryColumns+` FROM `+table+n.whereClause()+
			` ORDER BY `+order+` DESC LIMIT $`+strconv.Itoa(len(args)), args...)
		found, err := pgx.CollectRows(rows, scanDelivery)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return newest(list, limit), nil
}

// newest returns the deliveries with the highest Seq, at most limit.
func newest(list []Delivery, limit int) []Delivery {
	slices.SortFunc(list, func(a, b Delivery) int { return cmp.Compare(b.Seq, a.Seq) })
	return list[:min(len(list), limit)]
}

// The views of deliveries.
const (
	openDeliveries  = "herald.open_deliveries"
	endedDeliveries = "herald.ended_deliveries"
)

// tables returns the views that can have deliveries with the status of the filter.
func (f Filter) tables() []string {
	switch {
	case f.Status == "":
		return []string{openDeliveries, endedDeliveries}
	case f.Status.Final():
		return []string{endedDeliveries}
	}
	return []string{openDeliveries}
}

// reasonStatuses has the statuses of deliveries that may have a reason.
var reasonStatuses = []Status{Waiting, Held, Skipped, Rejected, Dead, Cancelled}

// deliveriesByReason is Deliveries for a filter with a reason and no status. It reads one list for each of
// reasonStatuses and merges the lists, because the index history_reason is ordered by seq only within a status.
func (s *Store) deliveriesByReason(ctx context.Context, f Filter) (all []Delivery, err error) {
	for _, f.Status = range reasonStatuses {
		list, err := s.Deliveries(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return newest(all, min(cmp.Or(max(f.Limit, 0), 50), maxRows)), nil
}

// narrow returns the SQL conditions of the filter, except those of Before and Limit.
func (f Filter) narrow() (n narrowing) {
	if f.ChainID != nil {
		n.addCondition("chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("agent_id::text =", f.AgentID) // uses the index history_agent
	}
	if f.Client != "" {
		n.addCondition("split_part(order_key, '/', 3) =", f.Client) // uses the index history_client
	}
	if f.Transaction != "" {
		n.addCondition("job ->> 'transactionHash' =", f.Transaction) // uses the index history_transaction
	}
	if f.Key != "" {
		n.args = append(n.args, f.Key)
		n.conditions = append(n.conditions, fmt.Sprintf("herald.key_hash(key) = herald.key_hash($%d)", len(n.args)))
	}
	if f.Kind != "" {
		n.addCondition("kind =", f.Kind)
	}
	if f.Kind != "" && f.Kind != string(job.KindNewFeedback) {
		n.conditions = append(n.conditions, "kind <> 'NewFeedback'") // uses the index history_kind
	}
	switch f.Status {
	case "":
	case Queued:
		n.conditions = append(n.conditions, "place IN ('line', 'out')", "status = 'queued'")
	case Running:
		n.conditions = append(n.conditions, "place = 'out'", "status = 'running'")
	case Waiting:
		n.conditions = append(n.conditions, "place IN ('waiting', 'task')")
	case Held:
		n.conditions = append(n.conditions, "place = 'held'")
	case Skipped, Rejected, Dead, Cancelled:
		n.addCondition("undelivered =", f.Status) // uses the index history_undelivered
	default:
		n.addCondition("status =", f.Status)
	}
	if f.Reason != "" {
		n.addCondition("reason =", f.Reason)
	}
	if !f.Since.IsZero() {
		n.addCondition("created_at >=", f.Since)
	}
	if !f.Until.IsZero() {
		n.addCondition("created_at <", f.Until)
	}
	return n
}

// acceptSkew is how much later a row may be created than a row with a higher seq. For two concurrent transactions, that
// is at most their duration. If Postgres' clock is wrong, for example after a failover, the error of the clock is
// added. It is assumed to be one hour at most.
const acceptSkew = time.Hour + 5*time.Minute

// narrowByTime returns the conditions of narrow, and also bounds of seq that follow from Since and Until. Postgres
// reads lists in the order of seq, and created_at has no index. Without these bounds, a list of the last hour that does
// not fill a page would read all older rows.
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

// firstSeqSince returns a seq such that rows with a lower seq were created before t. It uses a binary search, which
// assumes that created_at grows with seq (but see acceptSkew). If all rows are older than t, it returns a value above
// every seq.
func (s *Store) firstSeqSince(ctx context.Context, t time.Time) (int64, error) {
	var low, high int64
	err := s.pool.QueryRow(ctx, `SELECT coalesce((SELECT seq FROM herald.history ORDER BY seq LIMIT 1), 0),
		coalesce((SELECT seq FROM herald.history ORDER BY seq DESC LIMIT 1), 0) + 1`).Scan(&low, &high)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var seq int64
		var created time.Time
		err = s.pool.QueryRow(ctx, `SELECT seq, created_at FROM herald.history WHERE seq >= $1 ORDER BY seq LIMIT 1`,
			middle).Scan(&seq, &created)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			high, err = middle, nil
		case err != nil:
		case created.Before(t):
			low = seq + 1
		default:
			high = middle
		}
	}
	return low, err
}

// narrowing collects the conditions of a WHERE clause and their arguments. A field that a filter does not set adds no
// condition, so that Postgres can choose an index for each combination of fields.
type narrowing struct {
	conditions []string
	args       []any
}

// addCondition adds an SQL condition. condition ends with an operator, such as "seq <", and arg is its right operand.
func (n *narrowing) addCondition(condition string, arg any) {
	n.args = append(n.args, arg)
	n.conditions = append(n.conditions, condition+" $"+strconv.Itoa(len(n.args)))
}

// whereClause returns " WHERE " and all conditions, or "" if n has no condition.
func (n *narrowing) whereClause() string {
	if len(n.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(n.conditions, " AND ")
}

// Count returns the number of deliveries that match the filter, by status. It ignores Before and Limit.
func (s *Store) Count(ctx context.Context, f Filter) (counts map[Status]int64, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count deliveries")
	n, err := s.narrowByTime(ctx, f)
	if err != nil {
		return nil, err
	}
	counts = make(map[Status]int64)
	for _, table := range f.tables() {
		rows, _ := s.pool.Query(ctx, `SELECT status, count(*) FROM `+table+n.whereClause()+` GROUP BY status`, n.args...)
		var status Status
		var count int64
		_, err = pgx.ForEachRow(rows, []any{&status, &count}, func() error {
			counts[status] += count
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// Stuck is the number of held or overdue deliveries with one status and reason.
type Stuck struct {
	Status Status // Held, or the status of overdue deliveries
	Reason outcome.Reason
	Count  int64
}

// overdueAfter is how long a delivery must be late before ListStuck counts it as overdue.
const overdueAfter = time.Minute

// ListStuck counts held and overdue deliveries, by status and reason. A delivery is overdue if, at least overdueAfter
// ago, its wait ended, its task was due but was not claimed, or its lease expired.
func (s *Store) ListStuck(ctx context.Context) (stuck []Stuck, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count held and overdue deliveries")
	rows, _ := s.pool.Query(ctx, statement("stuck"), overdueAfter)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Stuck])
}

// DeliveryByKey reads the delivery that has the key now, with its job, result and attempts. Its id may differ from
// job.IDOf(key): after a reorg, a second delivery may have got the key of a first one. DeliveryByKey returns
// ErrNotFound if no delivery has the key.
func (s *Store) DeliveryByKey(ctx context.Context, key string) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	var id uuid.UUID
	if err := s.pool.QueryRow(ctx, `SELECT id FROM herald.history WHERE herald.key_hash(key) = herald.key_hash($1)`, key).Scan(&id); err != nil {
		return d, fmt.Errorf("look up the row with %s: %w", key, noRows(err, ErrNotFound))
	}
	return s.Delivery(ctx, id)
}

// Blocker returns the delivery for which the delivery with this id waits (behind_earlier). Among the other open
// deliveries of the ordering key, this is the one that has the turn, else the one with the lowest index. If there is no
// such delivery, Blocker returns ErrNotFound.
func (s *Store) Blocker(ctx context.Context, id uuid.UUID) (d Delivery, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	var blocker uuid.UUID
	if err := s.pool.QueryRow(ctx, statement("blocker"), id).Scan(&blocker); err != nil {
		return d, fmt.Errorf("find the delivery that %s waits behind: %w", id, noRows(err, ErrNotFound))
	}
	return s.Delivery(ctx, blocker)
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
	           FROM herald.attempts WHERE delivery_id = $1
	          UNION ALL
	         SELECT attempts, claimed_at, NULL, 'claim', '', '', '', NULL, NULL, '', NULL
	           FROM herald.work WHERE id = $1 AND status = 'running'
	          ORDER BY number, started_at`, id).
		Query(func(rows pgx.Rows) (err error) {
			d.History, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
			return err
		})
	return d, noRows(s.pool.SendBatch(ctx, b).Close(), ErrNotFound)
}
