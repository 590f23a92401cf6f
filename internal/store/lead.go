package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// leaderLock is the advisory lock that Lead acquires: the text "herald" as a number. The rounds of the reconciler,
	// of the retention and of the alerts share it, so only one of them runs at a time, in one process.
	leaderLock = 0x686572616c64
	// turnLock is an advisory lock that a process holds while it asks for other locks, so that processes ask in turn.
	turnLock = leaderLock + 1
	// lockTimeout limits each statement that acquires or releases locks.
	lockTimeout = 5 * time.Second
)

// Lead runs do if it gets the leader lock, and releases the lock when do returns. It does not wait: it returns false,
// without running do, if another call in this or another process holds the lock. The connection to Postgres holds the
// lock, so a process that dies leaves no lock behind. The error is that of do or of Postgres.
func (s *Store) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	return s.leaders.lead(ctx, []int64{leaderLock}, func(ctx context.Context, _ []int64) error { return do(ctx) })
}

// leaders holds the advisory locks of a process, all on one connection.
type leaders struct {
	store *Store // whose pool the connection is from

	mu   sync.Mutex
	conn *pgxpool.Conn      // nil: no lock is held
	held map[int64]struct{} // held locks; not asked for again, as Postgres would grant them to the same session twice
}

// lead runs do with those of the locks that it gets, and releases them when do returns. It returns false, without
// running do, if it gets none.
func (l *leaders) lead(ctx context.Context, locks []int64, do func(context.Context, []int64) error) (bool, error) {
	conn, got, err := l.lock(ctx, locks)
	if err != nil {
		return false, fmt.Errorf("take the leader lock: %w", pgerror.Explain(err))
	}
	if len(got) == 0 {
		return false, nil
	}
	defer l.unlock(ctx, conn, got)
	return true, do(ctx, got)
}

// lock tries to acquire those of locks that this process does not hold, without waiting for other holders. It returns
// the locks that it acquired and the connection that holds them. Processes try one after the other (turnLock), so that
// two processes that start together do not each get some of a chain's contracts.
func (l *leaders) lock(ctx context.Context, locks []int64) (_ *pgxpool.Conn, got []int64, err error) {
	ctx, cancel := l.store.withDeadline(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(locks), func(lock int64) bool { _, isHeld := l.held[lock]; return isHeld })
	if len(free) == 0 {
		return nil, nil, ctx.Err()
	}
	if l.conn == nil {
		if l.conn, err = l.store.pool.Acquire(ctx); err != nil {
			return nil, nil, err
		}
	}
	// The statement does not end with ctx: pgx would close the connection, which may hold locks of others.
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer end()
	// If this machine fails without closing the connection, keepalives make Postgres drop the locks after 5 + 2 * 2 s.
	rows, _ := l.conn.Query(ctx, `WITH turn AS MATERIALIZED (
			SELECT pg_advisory_xact_lock($2), set_config('tcp_keepalives_idle', '5', false),
			       set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '2', false))
		SELECT lock FROM turn CROSS JOIN LATERAL (
			SELECT lock FROM unnest($1::bigint[]) AS lock WHERE pg_try_advisory_lock(lock)) AS got`,
		free, int64(turnLock))
	if got, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		l.drop(ctx)
		return nil, nil, err
	}
	for _, lock := range got {
		l.held[lock] = struct{}{}
	}
	conn := l.conn
	l.releaseUnused()
	return conn, got, nil
}

// unlock releases locks that lock returned with conn. It does nothing if conn was closed since: Postgres has then
// released them.
func (l *leaders) unlock(ctx context.Context, conn *pgxpool.Conn, locks []int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock(lock) FROM unnest($1::bigint[]) AS lock`, locks); err != nil {
		l.drop(ctx)
		return
	}
	for _, lock := range locks {
		delete(l.held, lock)
	}
	l.releaseUnused()
}

// releaseUnused returns the connection to the pool if it holds no lock. The caller holds l.mu.
func (l *leaders) releaseUnused() {
	if len(l.held) == 0 {
		l.conn.Release()
		l.conn = nil
	}
}

// drop closes the connection, after which this process holds no lock: a session that may still hold one must not return
// to the pool. The caller holds l.mu.
func (l *leaders) drop(ctx context.Context) {
	_ = l.conn.Conn().Close(ctx)
	l.conn.Release()
	l.conn = nil
	clear(l.held)
}
