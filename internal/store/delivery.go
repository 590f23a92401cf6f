package store

import (
	"context"
	"fmt"
	"math/big"
	"strconv"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

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
func ScanDelivery(row pgx.CollectableRow) (d ledger.Delivery, err error) {
	err = scanRow(row, &d)
	return d, err
}

// scanRow scans a row into d: first the DeliveryColumns, and then further columns into the pointers in more.
func scanRow(row pgx.Row, d *ledger.Delivery, more ...any) error {
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
func (s *Store) DeliveryByKey(ctx context.Context, key string) (d ledger.Delivery, err error) {
	ctx, cancel := s.WithDeadline(ctx)
	defer cancel()
	var id uuid.UUID
	const find = `SELECT id FROM herald.history WHERE herald.key_hash(key) = herald.key_hash(replace($1, '\', '\\'))`
	if err := s.Conns.QueryRow(ctx, find, key).Scan(&id); err != nil {
		return d, fmt.Errorf("look up the row with %s: %w", key, postgres.NoRows(err, ledger.ErrNotFound))
	}
	return s.Delivery(ctx, id)
}

// Delivery reads one delivery with its job, result and attempts. It returns ErrNotFound if the delivery does not exist.
func (s *Store) Delivery(ctx context.Context, id uuid.UUID) (d ledger.Delivery, err error) {
	ctx, end := s.StartCall(ctx, &err, "read delivery %s", id)
	defer end()
	b := &pgx.Batch{}
	b.Queue(`SELECT `+DeliveryColumns+`, job, result FROM herald.deliveries WHERE id = $1`, id).
		QueryRow(func(row pgx.Row) error { return scanRow(row, &d, &d.Job, &d.Result) })
	b.Queue(`SELECT number, started_at, duration_ms, stage, coalesce(outcome, ''), coalesce(reason, ''),
	                coalesce(error, ''), arguments, response, coalesce(protocol, ''), step_us
	           FROM herald.attempts WHERE delivery_id = $1
	          UNION ALL
	         SELECT attempts, claimed_at, NULL, 'claim', '', '', '', NULL, NULL, '', NULL
	           FROM herald.work WHERE id = $1 AND status = 'running'
	          ORDER BY number, started_at`, id).
		Query(func(rows pgx.Rows) (err error) {
			d.History, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ledger.Attempt])
			return err
		})
	return d, postgres.NoRows(s.Conns.SendBatch(ctx, b).Close(), ledger.ErrNotFound)
}
