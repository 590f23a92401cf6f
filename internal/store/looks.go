package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Look is a delivery that has ended or was called, and for whose key a job was sent that differs from its event. A worker
// looks at the chain: a reorg may have replaced the event, and the chain may have no follower.
type Look struct {
	ID    uuid.UUID
	Key   string
	Job   job.Job // the event as it was read
	Hints []Hint
}

// lookAgain is how long a look belongs to the worker that has taken it.
const lookAgain = time.Minute

// TakeLooks returns at most limit looks that are due. Each is due again after a minute, unless EndLook ends it.
func (s *Store) TakeLooks(ctx context.Context, limit int) (list []Look, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "take the deliveries whose event is looked up again")
	rows, _ := s.pool.Query(ctx, `WITH due AS MATERIALIZED (
			SELECT delivery_id, rank FROM herald.hints WHERE look_at <= now() ORDER BY look_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), taken AS (
			UPDATE herald.hints h SET look_at = now() + $2::interval FROM due WHERE (h.delivery_id, h.rank) = (due.delivery_id, due.rank)
			RETURNING h.delivery_id
		)
		SELECT d.id, d.key, d.job FROM taken t JOIN herald.deliveries d ON d.id = t.delivery_id WHERE d.job IS NOT NULL`, limit, lookAgain)
	var l Look
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&l.ID, &l.Key, &raw}, func() error {
		if l.Job = (job.Job{}); json.Unmarshal(raw, &l.Job) == nil {
			list = append(list, l)
		}
		raw = nil
		return nil
	})
	for i := range list {
		if err == nil {
			list[i].Hints, err = readHints(ctx, s.pool, list[i].ID)
		}
	}
	return list, err
}

// EndLook ends a look. If next is not nil, the chain has this event under the key instead: the delivery is retracted if
// its agent was or may have been called, and the event gets a delivery of its own. The caller puts the tasks into Redis.
func (s *Store) EndLook(ctx context.Context, l Look, next *job.Job) (tasks []Task, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "end the look at the event of delivery %s", l.ID)
	lines := make(map[Agent][]Task)
	err = s.retryAccept(ctx, func() error {
		clear(lines)
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if next != nil {
				if err := s.lockAgents(ctx, tx, distinctAgents([]Agent{jobAgent(l.Job), jobAgent(*next)})); err != nil {
					return err
				}
				if err := s.replaceEvent(ctx, tx, l.Key, l.ID, l.Job, Gone{Next: next}, lines); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(ctx, `UPDATE herald.hints SET look_at = NULL, refuted = true WHERE delivery_id = $1`, l.ID); err != nil {
				return fmt.Errorf("note refuted hints: %w", err)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return interleaveAgents(lines), nil
}
