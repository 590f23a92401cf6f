package store

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Delivery is a delivery as operators see it. Lists leave Job, Result and History empty; the method Delivery sets them.
type Delivery struct {
	ID               uuid.UUID `json:"id"`
	Key              string    `json:"key"`
	Seq              int64     `json:"seq"`
	Kind             string    `json:"kind"`
	ChainID          uint64    `json:"chainId"`
	IdentityRegistry string    `json:"identityRegistry"`
	AgentID          string    `json:"agentId"`
	Client           string    `json:"client,omitempty"` // address of the author; of a validation, the validator
	// rating of a feedback, or response of a validation: "99.77"
	Value            string         `json:"value,omitempty"`
	Tag1             string         `json:"tag1,omitempty"` // at most 256 characters; Job has the whole tag
	Tag2             string         `json:"tag2,omitempty"`
	Status           outcome.Status `json:"status"`
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

// DeliveryColumns are the columns of a Delivery without Job, Result and History, for a query FROM herald.deliveries.
// ScanDelivery reads them. Anyone can write long tags to the chain, and a list has many rows, so tags are cut to 256
// characters (storable.MaxName).
const DeliveryColumns = `id, key, seq, kind, chain_id, identity_registry, agent_id::text,
	split_part(order_key, '/', 3), coalesce(job ->> 'value', job ->> 'score', job ->> 'response', ''),
	coalesce(job ->> 'valueDecimals', '0'), left(coalesce(job ->> 'tag1', job ->> 'tag', ''), 256),
	left(coalesce(job ->> 'tag2', ''), 256), status, coalesce(reason, ''), coalesce(error, ''), attempts, dispatch,
	CASE WHEN next_attempt_at < now() + interval '1 year' THEN next_attempt_at END, coalesce(tool_name, ''),
	coalesce(endpoint, ''), coalesce(file_verification, ''), coalesce(file_source, ''), file_disagrees, verified,
	corrected, created_at, updated_at, finished_at, coalesce(traceparent, '')`

// ScanDelivery reads a row of DeliveryColumns.
func ScanDelivery(row pgx.CollectableRow) (d Delivery, err error) {
	err = d.scanRow(row)
	return d, err
}

// scanRow scans a row into d: first the DeliveryColumns, and then further columns into the pointers in more.
func (d *Delivery) scanRow(row pgx.Row, more ...any) error {
	var traceparent, decimals string
	columns := []any{&d.ID, &d.Key, &d.Seq, &d.Kind, &d.ChainID, &d.IdentityRegistry, &d.AgentID,
		&d.Client, &d.Value, &decimals, &d.Tag1, &d.Tag2, &d.Status, &d.Reason,
		&d.Error, &d.Attempts, &d.Dispatch, &d.NextAttemptAt, &d.ToolName, &d.Endpoint,
		&d.FileVerification, &d.FileSource, &d.FileDisagrees, &d.Verified, &d.Corrected, &d.CreatedAt,
		&d.UpdatedAt, &d.FinishedAt, &traceparent}
	err := row.Scan(append(columns, more...)...)
	value, ok := new(big.Int).SetString(d.Value, 10)
	if places, err := strconv.ParseUint(decimals, 10, 8); ok && err == nil {
		d.Value = job.Decimal{Unscaled: value, Decimals: uint8(places)}.String()
	}
	d.TraceID = tracecontext.Of(d.ID, traceparent).TraceID.String()
	return err
}

// DeliveryByKey reads the delivery that has the key now, with its job, result and attempts. Its id may differ from
// job.IDOf(key): after a reorg, a second delivery may have got the key of a first one. DeliveryByKey returns
// ErrNotFound if no delivery has the key.
func (s *Store) DeliveryByKey(ctx context.Context, key string) (d Delivery, err error) {
	ctx, cancel := s.WithDeadline(ctx)
	defer cancel()
	var id uuid.UUID
	const find = `SELECT id FROM herald.history WHERE herald.key_hash(key) = herald.key_hash($1)`
	if err := s.Conns.QueryRow(ctx, find, key).Scan(&id); err != nil {
		return d, fmt.Errorf("look up the row with %s: %w", key, postgres.NoRows(err, ErrNotFound))
	}
	return s.Delivery(ctx, id)
}

// Delivery reads one delivery with its job, result and attempts. It returns ErrNotFound if the delivery does not exist.
func (s *Store) Delivery(ctx context.Context, id uuid.UUID) (d Delivery, err error) {
	ctx, end := s.StartCall(ctx, &err, "read delivery %s", id)
	defer end()
	b := &pgx.Batch{}
	b.Queue(`SELECT `+DeliveryColumns+`, job, result FROM herald.deliveries WHERE id = $1`, id).
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
	return d, postgres.NoRows(s.Conns.SendBatch(ctx, b).Close(), ErrNotFound)
}
