// Package retention deletes from Postgres what Herald keeps for a limited time: the contents of ended deliveries,
// weekly partitions of attempts, changes of status (delivery_events) and hourly counts of agents' calls. It also
// creates the partitions of the coming weeks, and finds the first row of a time.
//
// It ends no delivery: the ledger (store.Store.Expire) does. internal/delivery/maintenance decides when it runs.
//
// Invariants:
//   - Data is deleted if it is old by the clock of Postgres and, within AcceptSkew, by that of this machine
//     (ExtendAge). Changes of status are deleted by the clock of Postgres alone.
//   - The row of an ended delivery stays, with id, key, agent, status and reason. An open delivery keeps its contents
//     and its attempts.
//   - No statement waits long for a lock, because claims wait behind the lock of a partition.
//   - Every call ends: a context without a deadline gets one.
package retention

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

var statements = postgres.ReadStatements(files)

// Store deletes old data of one database. Safe for concurrent use.
type Store struct{ db *postgres.Pool }

// New returns the retention of the pool's database.
func New(pool *postgres.Pool) *Store { return &Store{db: pool} }

// Retain deletes the contents and hints of deliveries that ended more than age ago (retain.sql). Their rows stay, with
// id, key, agent, status and reason. Retain also deletes attempts from the default partition of herald.attempts, which
// DropPartitions never drops: those that began more than age ago and belong to no open delivery. It changes at most
// limit deliveries and deletes at most limit attempts, and returns the sum of both. The caller repeats the call while
// it returns more than 0.
func (s *Store) Retain(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "drop what old deliveries carried")
	defer end()
	if age, err = ExtendAge(ctx, s.db, age); err != nil {
		return 0, err
	}
	first, err := FirstSeqSince(ctx, s.db, time.Now().Add(AcceptSkew-age))
	if err != nil {
		return 0, err
	}
	for _, st := range []struct {
		sql  string
		args []any
	}{{statements.Text("retain"), []any{age, limit, first}}, {statements.Text("retain_attempts"), []any{age, limit}}} {
		err := BeginWithLockTimeout(ctx, s.db, func(tx pgx.Tx) error {
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

// ExtendAge returns age, or more if Postgres' clock is ahead of this machine's by more than AcceptSkew: then age plus
// the rest of the difference. Otherwise a wrong clock of Postgres, for example after a failover, would make everything
// old.
func ExtendAge(ctx context.Context, pool *postgres.Pool, age time.Duration) (time.Duration, error) {
	now, _, err := pool.Clock(ctx)
	return age + max(time.Until(now)-AcceptSkew, 0), err
}

// lockTimeout limits how long statements of retention and expiry wait for a lock in Postgres. It is short
// because all claims wait while DropPartitions waits for the lock of a partition.
const lockTimeout = 100 * time.Millisecond

// BeginWithLockTimeout calls do in a transaction and commits it. A statement of this transaction fails if it waits for
// a lock longer than lockTimeout.
func BeginWithLockTimeout(ctx context.Context, pool *postgres.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool.Conns, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", lockTimeout.Milliseconds()))
		if err != nil {
			return err
		}
		return do(tx)
	})
}

// DropPartitions drops the weekly partitions of herald.attempts whose week ended at least age ago, and returns how many
// it dropped. age must be positive, and at least the age at which open deliveries expire. A partition stays if it has
// an attempt of an open delivery, for example of a replayed one. If a partition's lock is not free within
// lockTimeout, DropPartitions stops with an error. The next call tries again.
func (s *Store) DropPartitions(ctx context.Context, age time.Duration) (dropped int, err error) {
	if age <= 0 {
		return 0, errors.New("drop weeks of attempts: an age is needed")
	}
	ctx, end := s.db.StartCall(ctx, &err, "drop weeks of attempts")
	defer end()
	// By this machine's clock, a week that old_weeks lists ended at most AcceptSkew later than age ago (ExtendAge).
	since := time.Now().Add(2*AcceptSkew - age)
	if age, err = ExtendAge(ctx, s.db, age); err != nil {
		return 0, err
	}
	rows, _ := s.db.Conns.Query(ctx, statements.Text("old_weeks"), age)
	weeks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(weeks) == 0 {
		return 0, err
	}
	first, err := FirstSeqSince(ctx, s.db, since)
	if err != nil {
		return 0, err
	}
	for _, week := range weeks {
		gone, err := s.dropWeek(ctx, week, first)
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
// error, if the partition has an attempt of an open delivery. Each delivery with an attempt there has a seq below
// first.
func (s *Store) dropWeek(ctx context.Context, week string, first int64) (dropped bool, err error) {
	table := pgx.Identifier{"herald", week}.Sanitize()
	var open bool
	look := strings.ReplaceAll(statements.Text("open_attempts"), "WEEK", table)
	err = s.db.Conns.QueryRow(ctx, look, first).Scan(&open)
	if err != nil || open {
		return false, err
	}
	err = BeginWithLockTimeout(ctx, s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DROP TABLE `+table)
		return err
	})
	return err == nil, err
}

// EnsurePartitions creates the missing weekly partitions of herald.attempts, for this week and a number of weeks after
// it (ahead). It returns how many it created.
func (s *Store) EnsurePartitions(ctx context.Context, ahead int) (made int, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "make partitions of herald.attempts")
	defer end()
	err = s.db.Conns.QueryRow(ctx, `SELECT herald.ensure_attempt_partitions(now(), $1)`, ahead).Scan(&made)
	return made, err
}

// EventRetention is how long changes of status are kept for EventsAfter. DropEvents deletes older ones.
const EventRetention = 72 * time.Hour

// DropEvents deletes at most limit DeliveryEvents that are older than EventRetention, and returns how many it deleted.
// It also deletes at most limit ones of transactions that this cluster has not begun, which a restored dump may have:
// EventsAfter would return them when the cluster reaches their transaction ids.
func (s *Store) DropEvents(ctx context.Context, limit int) (dropped int, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "drop old events")
	defer end()
	tag, err := s.db.Conns.Exec(ctx, `DELETE FROM herald.delivery_events WHERE (xid, id) IN (
			(SELECT xid, id FROM (SELECT xid, id, at FROM herald.delivery_events ORDER BY xid, id LIMIT $2) oldest
			  WHERE at < now() - $1::interval)
			UNION ALL
			(SELECT xid, id FROM herald.delivery_events
			  WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT $2))`,
		EventRetention, limit)
	return int(tag.RowsAffected()), err
}

// AgentHoursKept is how long the hourly counts of an agent's calls are kept.
const AgentHoursKept = 90 * 24 * time.Hour

// DropAgentHours deletes the counts of hours that began more than age ago, oldest first, at most limit rows. It returns
// how many rows it deleted; the caller repeats the call while that equals limit.
func (s *Store) DropAgentHours(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "drop old counts of agents' calls")
	defer end()
	if age, err = ExtendAge(ctx, s.db, age); err != nil {
		return 0, err
	}
	tag, err := s.db.Conns.Exec(ctx, statements.Text("drop_agent_hours"), age, limit)
	return int(tag.RowsAffected()), err
}

// AcceptSkew is how much later a row may be created than a row with a higher seq. For two concurrent transactions, that
// is at most their duration. If Postgres' clock is wrong, for example after a failover, the error of the clock is
// added. It is assumed to be one hour at most.
const AcceptSkew = time.Hour + 5*time.Minute

// FirstSeqSince returns a seq such that rows with a lower seq were created before t. It uses a binary search, which
// assumes that created_at grows with seq (but see AcceptSkew). If all rows are older than t, it returns a value above
// every seq.
func FirstSeqSince(ctx context.Context, pool *postgres.Pool, t time.Time) (int64, error) {
	var low, high int64
	err := pool.Conns.QueryRow(ctx, `SELECT coalesce((SELECT seq FROM herald.history ORDER BY seq LIMIT 1), 0),
		coalesce((SELECT seq FROM herald.history ORDER BY seq DESC LIMIT 1), 0) + 1`).Scan(&low, &high)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var seq int64
		var created time.Time
		err = pool.Conns.QueryRow(ctx,
			`SELECT seq, created_at FROM herald.history WHERE seq >= $1 ORDER BY seq LIMIT 1`,
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
