package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// leaderLock is the advisory lock of the one process that reconciles: the text "herald" as a number.
	leaderLock = 0x686572616c64
	// turnLock is the advisory lock of the one process that asks for locks.
	turnLock = leaderLock + 1
	// lockTimeout bounds a statement about locks.
	lockTimeout = 5 * time.Second
)

// Lead runs do if this process gets the leader lock, and reports whether it did. The connection holds the lock, so a
// process that dies leaves no lock behind.
func (s *Store) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	return s.leaders.lead(ctx, []int64{leaderLock}, func(ctx context.Context, _ []int64) error { return do(ctx) })
}

// leaders holds the advisory locks of a process, all on one connection.
type leaders struct {
	acquire func(context.Context) (*pgxpool.Conn, error) // from the store's pool, with the store's deadline

	mu   sync.Mutex
	conn *pgxpool.Conn         // nil: no lock is held
	held map[int64]*leadership // Postgres grants a lock again to the session that has it, so held refuses that
}

// leadership is one call of lead.
type leadership struct{ end context.CancelCauseFunc }

// errLocksLost ends the context of a leader whose connection was lost.
var errLocksLost = errors.New("the connection that held the leader lock is lost")

// lead runs do with those of the locks that it gets, and reports whether it got any. The context of do ends if the
// connection is found to be lost.
func (l *leaders) lead(ctx context.Context, locks []int64, do func(context.Context, []int64) error) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	own := &leadership{end}
	got, err := l.lock(ctx, locks, own)
	if err != nil {
		return false, fmt.Errorf("take the leader lock: %w", pgerror.Explain(err))
	}
	if len(got) == 0 {
		return false, nil
	}
	defer l.unlock(ctx, got, own)
	if err = do(ctx, got); err != nil && errors.Is(context.Cause(ctx), errLocksLost) {
		err = errLocksLost
	}
	return true, err
}

// lock asks for those of the locks that this process does not hold, and returns those that it gets. Processes ask one
// after the other, so that two that start together do not divide a chain's contracts between them.
func (l *leaders) lock(ctx context.Context, locks []int64, own *leadership) (got []int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(locks), func(lock int64) bool { return l.held[lock] != nil })
	if len(free) == 0 {
		return nil, nil
	}
	if l.conn == nil {
		if l.conn, err = l.acquire(ctx); err != nil {
			return nil, err
		}
	}
	// The statement does not end with ctx: pgx would close the connection, which may hold locks of others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	// If this machine fails without closing the connection, keepalives make Postgres drop the locks after 5 + 2 * 2 s.
	rows, _ := l.conn.Query(ctx, `WITH turn AS MATERIALIZED (
			SELECT pg_advisory_xact_lock($2), set_config('tcp_keepalives_idle', '5', false),
			       set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '2', false))
		SELECT lock FROM turn, unnest($1::bigint[]) AS lock WHERE pg_try_advisory_lock(lock)`, free, int64(turnLock))
	if got, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		l.drop(ctx)
		return nil, err
	}
	for _, lock := range got {
		l.held[lock] = own
	}
	l.releaseUnused()
	return got, nil
}

// unlock releases locks, unless they were lost with their connection.
func (l *leaders) unlock(ctx context.Context, locks []int64, own *leadership) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	locks = slices.DeleteFunc(locks, func(lock int64) bool { return l.held[lock] != own })
	if len(locks) == 0 {
		return
	}
	for _, lock := range locks {
		delete(l.held, lock)
	}
	if _, err := l.conn.Exec(ctx, `SELECT pg_advisory_unlock(lock) FROM unnest($1::bigint[]) AS lock`, locks); err != nil {
		l.drop(ctx)
		return
	}
	l.releaseUnused()
}

// releaseUnused returns the connection to the pool if it holds no lock.
func (l *leaders) releaseUnused() {
	if len(l.held) == 0 {
		l.conn.Release()
		l.conn = nil
	}
}

// drop closes the connection, because a session that may still hold a lock must not return to the pool. It ends the
// contexts of all leaders.
func (l *leaders) drop(ctx context.Context) {
	_ = l.conn.Conn().Close(ctx)
	l.conn.Release()
	l.conn = nil
	for _, own := range l.held {
		own.end(errLocksLost)
	}
	clear(l.held)
}
