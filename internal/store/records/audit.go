package records

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// Audit records one action on agents or deliveries by an operator, or by Herald itself. Its fields are in the order in
// which Audits selects them.
type Audit struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`
	Filter json.RawMessage `json:"filter,omitempty"` // selection of the deliveries or agents
	// number of selected deliveries or agents when the action began
	Matched    int64      `json:"matched"`
	Moved      int64      `json:"moved"` // number of deliveries or agents that the action changed
	State      string     `json:"state"` // running, done, cancelled or failed
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	Note       string     `json:"note,omitempty"`
}

// BeginAudit inserts an audit before its action begins, with the Actor, Action, Filter, Matched and Note of a, in the
// state running. It returns the id for EndAudit. If the process dies during the action, the audit stays running.
func (s *Store) BeginAudit(ctx context.Context, a Audit) (id int64, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "note %s in the audit", a.Action)
	defer end()
	err = s.db.Conns.QueryRow(ctx,
		`INSERT INTO herald.audit (actor, action, filter, matched, note) VALUES ($1, $2, $3, $4, $5) RETURNING id`,
		storable.Text(a.Actor, storable.MaxName), storable.Text(a.Action, storable.MaxName),
		storable.JSON(a.Filter, storable.MaxSide), a.Matched,
		storable.OrNull(storable.Text(a.Note, storable.MaxError))).Scan(&id)
	return id, err
}

// EndAudit stores the end of an action: the number of changed deliveries or agents (moved) and the state, which is
// done, cancelled or failed. If note is empty, the note of BeginAudit stays. It returns ErrNotFound if there is no such
// audit.
func (s *Store) EndAudit(ctx context.Context, id int64, moved int64, state, note string) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "note the end of audit %d", id)
	defer end()
	err = s.db.Conns.QueryRow(ctx, `UPDATE herald.audit
		SET moved = $2, state = $3, note = coalesce($4, note), finished_at = now() WHERE id = $1 RETURNING id`,
		id, moved, storable.Text(state, storable.MaxName),
		storable.OrNull(storable.Text(note, storable.MaxError))).Scan(&id)
	return postgres.NoRows(err, ledger.ErrNotFound)
}

// Audits lists audits, newest first. If before is positive, it lists only audits with a lower id. It returns at most
// limit, which defaults to 50 and is at most maxRows.
func (s *Store) Audits(ctx context.Context, before int64, limit int) (list []Audit, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list the audit")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT id, at, actor, action, filter, matched, moved, state,
		finished_at, coalesce(note, '') FROM herald.audit
		WHERE id < CASE WHEN $1::bigint > 0 THEN $1 ELSE 9223372036854775807 END ORDER BY id DESC LIMIT $2`,
		before, min(cmp.Or(max(limit, 0), 50), maxRows))
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Audit])
}
