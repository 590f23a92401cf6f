package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retain drops what deliveries carried that are final for longer than age (job, sealed headers, result, error; id, key,
// status and reason stay), and old attempts that lie in no week's partition. It returns how many rows it changed; at
// most limit of each, so the caller comes back.
func (s *Store) Retain(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "drop what old deliveries carried")
	for _, sql := range []string{statement("retain"), statement("retain_attempts")} {
		err := s.beginWithLockTimeout(ctx, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql, age, limit)
			rows += int(tag.RowsAffected())
			return err
		})
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// retentionLockTimeout bounds how long the retention waits for a lock. Every worker that claims waits behind it while it
// waits for the lock of a week.
const retentionLockTimeout = 100 * time.Millisecond

// beginWithLockTimeout runs do in a transaction that fails when a lock is not given within retentionLockTimeout.
func (s *Store) beginWithLockTimeout(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", retentionLockTimeout.Milliseconds()))
		if err != nil {
			return err
		}
		return do(tx)
	})
}

// DropPartitions drops the weeks of attempts that ended more than age ago, and returns how many. The age must be at
// least that at which open deliveries expire; a week that holds an attempt of one that is open all the same, because it
// was replayed, stays. A week whose lock is not given within retentionLockTimeout is an error and stays for the next call.
func (s *Store) DropPartitions(ctx context.Context, age time.Duration) (dropped int, err error) {
	if age <= 0 {
		return 0, errors.New("drop weeks of attempts: an age is needed")
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "drop weeks of attempts")
	rows, _ := s.pool.Query(ctx, statement("old_weeks"), age)
	weeks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	for _, week := range weeks {
		gone, err := s.dropWeek(ctx, week)
		if err != nil {
			return dropped, fmt.Errorf("%s: %w", week, err)
		}
		if gone {
			dropped++
		}
	}
	return dropped, nil
}

func (s *Store) dropWeek(ctx context.Context, week string) (dropped bool, err error) {
	table := pgx.Identifier{"herald", week}.Sanitize()
	var open bool
	// From what is open to the week's key: there is less of it than a week has attempts.
	err = s.pool.QueryRow(ctx, `WITH open AS MATERIALIZED (SELECT id FROM herald.deliveries WHERE finished_at IS NULL AND attempts > 0)
		SELECT EXISTS (SELECT FROM open CROSS JOIN LATERAL (SELECT FROM `+table+` WHERE delivery_id = open.id LIMIT 1) a)`).Scan(&open)
	if err != nil || open {
		return false, err
	}
	err = s.beginWithLockTimeout(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DROP TABLE `+table)
		return err
	})
	return err == nil, err
}
