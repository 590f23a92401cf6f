package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// leaderLock is the advisory lock in Postgres that Lead acquires: the text "herald" as a number. It lets one
	// process at a time run the reconciler, retention and the alerts.
	leaderLock = 0x686572616c64
	// guardLock is an advisory lock that a process holds while it tries to acquire other locks, so that processes try
	// one after the other.
	guardLock = leaderLock + 1
	// lockTimeout limits each statement that acquires or releases advisory locks.
	lockTimeout = 5 * time.Second
	// lockMaxIdle is how long the connection that holds the locks may be idle. If it is idle for longer, the process is
	// frozen (keepAlive). Postgres then ends its session, so that another process can acquire the locks.
	lockMaxIdle = 40 * time.Second
)

// Lead calls do if it acquires the leader lock, and releases the lock when do returns. It does not wait for the lock:
// if another call in this or another process holds the lock, Lead returns false and does not call do. The lock belongs
// to a connection to Postgres, so it ends when the process dies, or is frozen for lockMaxIdle. The error is that of do
// or of Postgres.
func (p *Pool) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	return p.LeadLocks(ctx, []int64{leaderLock}, func(ctx context.Context, _ []int64) error { return do(ctx) })
}

// LeadLocks tries to acquire locks without waiting, and calls do with those that it acquired. It releases them when do
// returns. If it acquired none, it returns false and does not call do. The error is that of do or of Postgres.
func (p *Pool) LeadLocks(ctx context.Context, locks []int64, do func(context.Context, []int64) error) (bool, error) {
	conn, got, err := p.leaders.lock(ctx, locks)
	if err != nil {
		return false, fmt.Errorf("take the leader lock: %w", pgerror.Explain(err))
	}
	if len(got) == 0 {
		return false, nil
	}
	defer p.leaders.unlock(ctx, conn, got)
	alive, end := context.WithCancel(ctx)
	defer end()
	go p.leaders.keepAlive(alive, conn)
	return true, do(ctx, got)
}

// leaders acquires and releases the advisory locks of a process, all on one connection.
type leaders struct {
	pool    *Pool         // provides the connection
	maxIdle time.Duration // lockMaxIdle; tests change it

	mu   sync.Mutex
	conn *pgxpool.Conn      // connection that holds the locks; nil: no lock is held
	held map[int64]struct{} // held locks; lock skips them, because Postgres would grant them to conn again
}

// lock tries to acquire those of locks that this process does not hold, without waiting. It returns the acquired locks
// and the connection that holds them. Processes try one after the other (guardLock). Otherwise, if two processes
// started together, each could acquire the locks of some contracts of a chain, and both would read the chain.
func (l *leaders) lock(ctx context.Context, locks []int64) (_ *pgxpool.Conn, got []int64, err error) {
	ctx, cancel := l.pool.WithDeadline(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(locks), func(lock int64) bool { _, isHeld := l.held[lock]; return isHeld })
	if len(free) == 0 {
		return nil, nil, ctx.Err()
	}
	if l.conn == nil {
		if l.conn, err = l.pool.Conns.Acquire(ctx); err != nil {
			return nil, nil, err
		}
	}
	// The statement does not end with ctx. Otherwise pgx would close the connection, which may hold other locks.
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer end()
	// If this machine fails without closing the connection, keepalives make Postgres end it after 5 + 2 * 2 s.
	rows, _ := l.conn.Query(ctx, `WITH guard AS MATERIALIZED (
			SELECT pg_advisory_xact_lock($2), set_config('tcp_keepalives_idle', '5', false),
			       set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '2', false),
			       set_config('idle_session_timeout', $3, false))
		SELECT lock FROM guard CROSS JOIN LATERAL (
			SELECT lock FROM unnest($1::bigint[]) AS lock WHERE pg_try_advisory_lock(lock)) AS got`,
		free, int64(guardLock), fmt.Sprint(l.maxIdle.Milliseconds()))
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

// keepAlive pings the connection that holds locks, so that it is never idle for maxIdle. It returns when ctx ends.
func (l *leaders) keepAlive(ctx context.Context, conn *pgxpool.Conn) {
	for range loop.Every(ctx, l.maxIdle/4) {
		l.pingHolder(ctx, conn)
	}
}

// pingHolder sends an empty statement on the connection that holds the locks. If that fails, it closes the connection,
// because the locks are lost.
func (l *leaders) pingHolder(ctx context.Context, conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == conn && conn.Ping(ctx) != nil {
		l.drop(ctx)
	}
}

// unlock releases the locks that lock returned together with conn. It does nothing if conn has been closed since,
// because Postgres has then released the locks.
func (l *leaders) unlock(ctx context.Context, conn *pgxpool.Conn, locks []int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	const unlock = `SELECT pg_advisory_unlock(lock) FROM unnest($1::bigint[]) AS lock`
	if _, err := conn.Exec(ctx, unlock, locks); err != nil {
		l.drop(ctx)
		return
	}
	for _, lock := range locks {
		delete(l.held, lock)
	}
	l.releaseUnused()
}

// releaseUnused returns the connection to the pool if it holds no lock. The caller has locked l.mu.
func (l *leaders) releaseUnused() {
	if len(l.held) == 0 {
		l.conn.Release()
		l.conn = nil
	}
}

// drop closes the connection, which ends all locks of this process. A connection that may still hold a lock must not
// return to the pool. The caller has locked l.mu.
func (l *leaders) drop(ctx context.Context) {
	_ = l.conn.Conn().Close(ctx)
	l.conn.Release()
	l.conn = nil
	clear(l.held)
}
