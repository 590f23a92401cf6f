package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retain deletes the contents and hints of deliveries that ended more than age ago (retain.sql). Their rows stay, with
// id, key, agent, status and reason. Retain also deletes attempts from the default partition of herald.attempts, which
// DropPartitions never drops: those that began more than age ago and belong to no open delivery. It changes at most
// limit deliveries and deletes at most limit attempts, and returns the sum of both. The caller repeats the call while
// it returns more than 0.
func (s *Store) Retain(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "drop what old deliveries carried")
	first, err := s.firstSeqSince(ctx, time.Now().Add(acceptSkew-age))
	if err != nil {
		return 0, err
	}
	for _, st := range []struct {
		sql  string
		args []any
	}{{statement("retain"), []any{age, limit, first}}, {statement("retain_attempts"), []any{age, limit}}} {
		err := s.beginWithLockTimeout(ctx, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, st.sql, st.args...)
			rows += int(tag.RowsAffected())
			return err
		})
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// retentionLockTimeout limits how long statements of retention and expiry wait for a lock in Postgres. It is short
// because all claims wait while DropPartitions waits for the lock of a partition.
const retentionLockTimeout = 100 * time.Millisecond

// beginWithLockTimeout calls do in a transaction and commits it. A statement of this transaction fails if it waits for
// a lock longer than retentionLockTimeout.
func (s *Store) beginWithLockTimeout(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", retentionLockTimeout.Milliseconds()))
		if err != nil {
			return err
		}
		return do(tx)
	})
}

// DropPartitions drops the weekly partitions of herald.attempts whose week ended at least age ago, and returns how many
// it dropped. age must be positive, and at least the age at which open deliveries expire. A partition stays if it has
// an attempt of an open delivery, for example of a replayed one. If a partition's lock is not free within
// retentionLockTimeout, DropPartitions stops with an error. The next call tries again.
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

// dropWeek drops the weekly partition of this name (attempts_YYYYMMDD) and returns true. It returns false, without an
// error, if the partition has an attempt of an open delivery.
func (s *Store) dropWeek(ctx context.Context, week string) (dropped bool, err error) {
	table := pgx.Identifier{"herald", week}.Sanitize()
	var open bool
	// Look up attempts by the ids of open deliveries, of which there are fewer than attempts in a week.
	err = s.pool.QueryRow(ctx, `WITH open AS MATERIALIZED (SELECT id FROM herald.work WHERE attempts > 0)
		SELECT EXISTS (SELECT FROM open CROSS JOIN LATERAL (
			SELECT FROM `+table+` WHERE delivery_id = open.id LIMIT 1) a)`).Scan(&open)
	if err != nil || open {
		return false, err
	}
	err = s.beginWithLockTimeout(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DROP TABLE `+table)
		return err
	})
	return err == nil, err
}
