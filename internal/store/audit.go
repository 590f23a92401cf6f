package store

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// Audit is one thing that an operator did to agents or deliveries. Its fields are in the order in which Audits selects
// them.
type Audit struct {
	ID         int64           `json:"id"`
	At         time.Time       `json:"at"`
	Actor      string          `json:"actor"`
	Action     string          `json:"action"`
	Filter     json.RawMessage `json:"filter,omitempty"` // which were meant
	Matched    int64           `json:"matched"`          // how many that were when it began
	Moved      int64           `json:"moved"`
	State      string          `json:"state"` // running done cancelled failed
	FinishedAt *time.Time      `json:"finishedAt,omitempty"`
	Note       string          `json:"note,omitempty"`
}

// BeginAudit notes what is about to be done: actor, action, filter, matched and note of a. EndAudit takes the id it
// returns. One that stays running is of a process that died in the middle.
func (s *Store) BeginAudit(ctx context.Context, a Audit) (id int64, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "note %s in the audit", a.Action)
	err = s.pool.QueryRow(ctx, `INSERT INTO herald.audit (actor, action, filter, matched, note) VALUES ($1, $2, $3, $4, $5) RETURNING id`,
		storable.Text(a.Actor, maxNameBytes), storable.Text(a.Action, maxNameBytes), storable.JSON(a.Filter, maxSideBytes),
		a.Matched, nullIfEmpty(storable.Text(a.Note, maxErrorBytes))).Scan(&id)
	return id, err
}

// EndAudit notes how it ended; state is done, cancelled or failed. An empty note leaves that of the beginning.
// ErrNotFound.
func (s *Store) EndAudit(ctx context.Context, id int64, moved int64, state, note string) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "note the end of audit %d", id)
	err = s.pool.QueryRow(ctx, `UPDATE herald.audit SET moved = $2, state = $3, note = coalesce($4, note), finished_at = now() WHERE id = $1 RETURNING id`,
		id, moved, storable.Text(state, maxNameBytes), nullIfEmpty(storable.Text(note, maxErrorBytes))).Scan(&id)
	return noRows(err, ErrNotFound)
}

// Audits lists them, newest first, from the one before the id before (0: from the newest); default 50, at most maxRows.
func (s *Store) Audits(ctx context.Context, before int64, limit int) (list []Audit, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list the audit")
	rows, _ := s.pool.Query(ctx, `SELECT id, at, actor, action, filter, matched, moved, state, finished_at, coalesce(note, '')
		FROM herald.audit WHERE $1::bigint <= 0 OR id < $1 ORDER BY id DESC LIMIT $2`, before, min(cmp.Or(max(limit, 0), 50), maxRows))
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Audit])
}
