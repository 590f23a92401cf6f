package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxDispatchedPerAgent is the number of deliveries of one agent that may be in Redis or running at a time. The limit
// keeps the queues in Redis short, and keeps many deliveries of one agent from delaying those of the others.
const MaxDispatchedPerAgent = 8

// Status is the state of a delivery (docs/design/delivery.md).
type Status string

// All statuses. A final status changes only by an operator's replay, or after a reorg.
const (
	Queued    Status = "queued"    // ready: in its agent's backlog, or dispatched with a task in Redis
	Running   Status = "running"   // claimed by a worker
	Waiting   Status = "waiting"   // until the time of its next attempt, or until another delivery has ended
	Held      Status = "held"      // until an operator or a setting releases it
	Delivered Status = "delivered" // the agent accepted it
	Skipped   Status = "skipped"   // no call was needed
	Rejected  Status = "rejected"  // the job, the event or the agent's answer rules out that another attempt succeeds
	Dead      Status = "dead"      // given up: its attempts are used up, or it is too old
	Cancelled Status = "cancelled" // ended by an operator or a reorg
)

// Final reports whether a delivery with this status has ended.
func (s Status) Final() bool {
	switch s {
	case Delivered, Skipped, Rejected, Dead, Cancelled:
		return true
	}
	return false
}

// ErrFenced is returned by a write whose claim is lost: its lease expired, or an operator or a reorg ended the
// delivery. The write changed nothing, except as described at Record.
var ErrFenced = errors.New("the claim on this delivery is lost: its lease ran out and another worker continued it")

// ErrStale is returned by Adopt when the attempt whose outcome it should record already has an outcome, or was undone.
// The write changed nothing, and the claim is still valid.
var ErrStale = errors.New("the outcome belongs to an attempt that has been recorded already")

// ErrNotFound is returned when the requested row does not exist.
var ErrNotFound = errors.New("not found")

// Config configures the connections to Postgres.
type Config struct {
	URL secret.Secret // postgres:// URL or key=value string; required

	// MaxConns is the size of the pool. It must exceed the worker's concurrency, or deliveries wait for connections.
	// A leader's locks keep one connection, and its statements need another. Default 10, at least 2.
	MaxConns int32

	// Locks is the store whose connection holds the locks of this store's leaders. Default: this store.
	Locks *Store

	// ConnectTimeout bounds one attempt to connect. Default 5 s.
	ConnectTimeout time.Duration

	// StrictOrder keeps the order of the deliveries of each ordering key (docs/design/delivery.md): only one of them is
	// sent at a time, and a stored delivery with a lower index is sent first. An agent's policy can switch it off. All
	// workers of a database need the same value.
	StrictOrder bool

	// StatementTimeout is set on every session, so that a statement whose client is lost cannot keep its locks. A call
	// of this package without an earlier deadline gives up after StatementTimeout plus ConnectTimeout, even if the
	// network does not respond. Default 30 s.
	StatementTimeout time.Duration
	// CloseWithin limits Close, for a command that exits afterwards: pgx waits 15 s for the server to acknowledge the
	// end of a connection whose statement hit a deadline. Zero: Close has no limit.
	CloseWithin time.Duration
}

// CommandClose is the Config.CloseWithin of Herald's commands.
const CommandClose = 300 * time.Millisecond

// Store is a pool of connections to one database. Safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of a call whose context has no earlier deadline
	strict  bool          // Config.StrictOrder

	closeWithin time.Duration // Config.CloseWithin
	silent      *atomic.Bool  // the last call timed out; nil: LimitCalls was not called

	leaders *leaders // Config.Locks

	claims  *coalescer[claimRequest, *Claim]    // groups first claims
	records *coalescer[recordRequest, Recorded] // groups plain outcomes
}

// idleInTransaction is how long Postgres waits for the next statement of a transaction before it ends the session. This
// package does nothing between statements. So a slower client is frozen or cut off, and would keep its locks on agents.
const idleInTransaction = 10 * time.Second

// lastCalls is the time of a call that follows a call that timed out, see LimitCalls.
const lastCalls = 200 * time.Millisecond

// LimitCalls limits each call to d, for a command that exits after a few calls. After a call that timed out, the next
// calls are limited to lastCalls, until one ends in time. LimitCalls must be called before every other method.
func (s *Store) LimitCalls(d time.Duration) { s.timeout, s.silent = d, new(atomic.Bool) }

// Open creates a pool without connecting. An unreachable database makes Ping and the first call fail.
func Open(cfg Config) (*Store, error) { return openPool(cfg, func(*pgxpool.Config) {}) }

// openPool is Open with a hook for tests, which may change the pool's configuration.
func openPool(cfg Config, adjust func(*pgxpool.Config)) (*Store, error) {
	if cfg.URL.IsZero() {
		return nil, errors.New("store: a database URL is needed (DATABASE_URL)")
	}
	if cfg.MaxConns < 0 || cfg.MaxConns == 1 {
		return nil, fmt.Errorf("store: a pool of %d connections is too small (HERALD_DB_POOL): it needs at least 2",
			cfg.MaxConns)
	}
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		return nil, fmt.Errorf("store: %w", errURL) // the parser's error may quote the URL, and with it the password
	}
	pc.MaxConns = 10
	if cfg.MaxConns > 0 {
		pc.MaxConns = cfg.MaxConns
	}
	pc.ConnConfig.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, defaultConnectTimeout)
	statement := cmp.Or(cfg.StatementTimeout, 30*time.Second)
	params := pc.ConnConfig.RuntimeParams
	params["statement_timeout"] = fmt.Sprint(statement.Milliseconds())
	params["idle_in_transaction_session_timeout"] = fmt.Sprint(min(statement, idleInTransaction).Milliseconds())
	params["timezone"] = "UTC"
	// Each statement has one good plan, by index. Planning it each time would cost more than running it, and a plan for
	// an empty table (a new week's attempts, an empty queue) would be very slow a minute later.
	params["plan_cache_mode"], params["enable_seqscan"], params["jit"] = "force_generic_plan", "off", "off"
	if params["application_name"] == "" {
		params["application_name"] = "herald"
	}
	adjust(pc)
	s := &Store{timeout: statement + pc.ConnConfig.ConnectTimeout, closeWithin: cfg.CloseWithin, strict: cfg.StrictOrder}
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), pc); err != nil {
		return nil, fmt.Errorf("store: %w", pgerror.Explain(err))
	}
	s.leaders = &leaders{store: s, held: map[int64]struct{}{}}
	if cfg.Locks != nil {
		s.leaders = cfg.Locks.leaders
	}
	s.claims = newCoalescer(coalescerConfig[claimRequest, *Claim]{flush: s.claimGroup, single: s.claimAlone, min: 1})
	s.records = newCoalescer(coalescerConfig[recordRequest, Recorded]{flush: s.recordGroup, single: s.recordAlone})
	return s, nil
}

const defaultConnectTimeout = 5 * time.Second

var errURL = errors.New("DATABASE_URL is not a Postgres URL (postgres://user@host/database)")

// withDeadline returns ctx with the deadline of one call of this package (Config.StatementTimeout, LimitCalls).
func (s *Store) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.silent == nil {
		return context.WithTimeout(ctx, s.timeout)
	}
	limit := s.timeout
	if s.silent.Load() {
		limit = min(limit, lastCalls)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	return ctx, func() {
		s.silent.Store(errors.Is(ctx.Err(), context.DeadlineExceeded))
		cancel()
	}
}

// wrapError is called with defer. If *err is not nil, it puts what failed before the error, and explains an unreachable
// Postgres.
func wrapError(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), pgerror.Explain(*err))
	}
}

// noRows returns meaning if err is pgx.ErrNoRows, otherwise err.
func noRows(err, meaning error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return meaning
	}
	return err
}

// Close closes all connections. It waits for groups in progress (coalescer), and for at most Config.CloseWithin for
// connections in use.
func (s *Store) Close() {
	s.claims.close()
	s.records.close()
	if s.closeWithin == 0 {
		s.pool.Close()
		return
	}
	closed := make(chan struct{})
	go func() { // ends with the pool, after 15 s at most
		defer close(closed)
		s.pool.Close()
	}()
	timeout := time.NewTimer(s.closeWithin)
	defer timeout.Stop()
	select {
	case <-closed:
	case <-timeout.C:
	}
}

// Ping checks that the database answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	err := s.pool.Ping(ctx)
	if err == nil {
		return nil
	}
	if plain := pgerror.Explain(err); plain != err {
		return plain
	}
	return fmt.Errorf("ask Postgres: %w", netguard.Explain("it", 0, err))
}

// PoolStat contains the numbers of connections in use, of idle ones, and of allowed ones.
type PoolStat struct{ Acquired, Idle, Max int32 }

// PoolStat returns the current state of the connection pool.
func (s *Store) PoolStat() PoolStat {
	st := s.pool.Stat()
	return PoolStat{Acquired: st.AcquiredConns(), Idle: st.IdleConns(), Max: st.MaxConns()}
}

// GroupStat counts, since the start, the groups of claims or records, the requests in these groups, and the groups that
// failed. The requests of a failed group were run one by one.
type GroupStat struct{ Groups, Grouped, Failed int }

// GroupStats returns the counts of groups, under the keys "claim" and "record".
func (s *Store) GroupStats() map[string]GroupStat {
	return map[string]GroupStat{"claim": s.claims.countGroups(), "record": s.records.countGroups()}
}

// Task is a task that the caller puts into Redis, or removes there if it is Ended. N is the delivery's dispatch
// counter: only a task with its present value can claim the delivery.
type Task struct {
	ID       uuid.UUID
	N        int
	Kind     string
	Attempts int // attempts of the delivery so far; with any, the task goes to the retry lane
	// Bulk: the delivery is part of a backfill, or this is the first attempt of a replay. The task goes to the lane
	// bulk, which comes after new deliveries.
	Bulk bool
	At   time.Time // earliest time at which the task may run; zero: now

	// Ended: the delivery was held, was waiting or has ended with this task, and continues without it. The task must
	// not run, so the caller removes it from Redis.
	Ended bool
}

func scanTask(row pgx.CollectableRow) (Task, error) {
	var t Task
	err := row.Scan(&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk)
	return t, err
}

// scanEnded reads the id and n of a task that has ended (Task.Ended).
func scanEnded(row pgx.CollectableRow) (Task, error) {
	t := Task{Ended: true}
	err := row.Scan(&t.ID, &t.N)
	return t, err
}

// Agent identifies an agent by chain, IdentityRegistry (lower-case 0x address) and decimal token id.
type Agent struct {
	ChainID  uint64
	Registry string
	ID       string
}
