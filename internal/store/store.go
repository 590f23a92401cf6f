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

// MaxDispatchedPerAgent is how many deliveries of one agent may be in Redis or running at a time (DESIGN §5). It keeps
// Redis shallow and one agent's flood from delaying the others.
const MaxDispatchedPerAgent = 8

// Status is the state of a delivery (DESIGN §4).
type Status string

// The closed list of statuses. Final ones never change again, but by an operator's replay.
const (
	Queued    Status = "queued"
	Running   Status = "running"
	Waiting   Status = "waiting"
	Held      Status = "held"
	Delivered Status = "delivered"
	Skipped   Status = "skipped"
	Rejected  Status = "rejected"
	Dead      Status = "dead"
	Cancelled Status = "cancelled"
)

// Final tells whether a delivery in this state has ended.
func (s Status) Final() bool {
	switch s {
	case Delivered, Skipped, Rejected, Dead, Cancelled:
		return true
	}
	return false
}

// ErrFenced means that the claim a write named is no longer the row's: the lease ran out and the delivery went on
// without it. The write changed nothing.
var ErrFenced = errors.New("the claim on this delivery is lost: its lease ran out and it went on without this worker")

// ErrStale means that the outcome which Adopt was given is that of an attempt which has ended otherwise, or was taken
// back. The write changed nothing, and the claim is still good.
var ErrStale = errors.New("the outcome belongs to an attempt that has been recorded already")

// ErrNotFound means that no such row exists.
var ErrNotFound = errors.New("not found")

// Config says how to reach Postgres.
type Config struct {
	URL secret.Secret // postgres:// URL or key=value string, needed

	// MaxConns is the pool's size. It must exceed the worker's concurrency, or deliveries wait for connections; the one
	// that reconciles holds a connection and needs another. Default 10, at least 2.
	MaxConns int32

	// ConnectTimeout bounds one attempt to connect. Default 5 s.
	ConnectTimeout time.Duration

	// StrictOrder keeps the order of each client's deliveries to an agent (DESIGN §5): one is in flight at a time, and a
	// known earlier index goes first. An agent's policy can switch it off. Every worker on a database needs the same.
	StrictOrder bool

	// StatementTimeout is set on every session, so that a lost client cannot leave a statement holding locks. A call of
	// this package that got no earlier deadline gives up after it and ConnectTimeout, even when the network says
	// nothing. Default 30 s.
	StatementTimeout time.Duration
	// CloseWithin bounds Close, for a command that ends after it. pgx waits 15 s for a server to acknowledge the end of a
	// connection whose statement was cut by a deadline. Zero: Close waits for that.
	CloseWithin time.Duration
}

// CommandClose is CloseWithin for a command.
const CommandClose = 300 * time.Millisecond

// Store is a pool of connections to one database. Safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of a call whose context has no earlier deadline
	strict  bool          // Config.StrictOrder

	closeWithin time.Duration // Config.CloseWithin
	silent      *atomic.Bool  // after LimitCalls: the last call got no answer in time; nil: calls are not limited

	claims  *coalescer[claimRequest, *Claim]    // first claims
	records *coalescer[recordRequest, Recorded] // plain outcomes
}

// idleInTransaction is how long the server lets a transaction of ours wait for its next statement: nothing here thinks
// between statements, so whoever does is frozen or cut off, and holds agents' locks.
const idleInTransaction = 10 * time.Second

// lastCalls bounds a call that follows one which got no answer, see LimitCalls.
const lastCalls = 200 * time.Millisecond

// LimitCalls gives each call d, for a command that is to end then. After a call that got no answer in time, the next
// ones get lastCalls, until one is answered. Call it before the first other call.
func (s *Store) LimitCalls(d time.Duration) { s.timeout, s.silent = d, new(atomic.Bool) }

// Open prepares a pool. It does not connect: a database that is away shows in Ping and in the first call.
func Open(cfg Config) (*Store, error) { return openPool(cfg, func(*pgxpool.Config) {}) }

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
	// Each statement has one good plan, by index. Planning anew would cost more than running it, and a plan that was
	// right for an empty table (a new week's attempts, a queue that was drained) would be ruinous a minute later.
	params["plan_cache_mode"], params["enable_seqscan"], params["jit"] = "force_generic_plan", "off", "off"
	if params["application_name"] == "" {
		params["application_name"] = "herald"
	}
	adjust(pc)
	s := &Store{timeout: statement + pc.ConnConfig.ConnectTimeout, closeWithin: cfg.CloseWithin, strict: cfg.StrictOrder}
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), pc); err != nil {
		return nil, fmt.Errorf("store: %w", pgerror.Explain(err))
	}
	s.claims = newCoalescer(coalescerConfig[claimRequest, *Claim]{flush: s.claimGroup, single: s.claimAlone, min: 1})
	s.records = newCoalescer(coalescerConfig[recordRequest, Recorded]{flush: s.recordGroup, single: s.recordAlone})
	return s, nil
}

const defaultConnectTimeout = 5 * time.Second

var errURL = errors.New("DATABASE_URL is not a Postgres URL (postgres://user@host/database)")

// withDeadline gives a call its deadline.
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

// wrapError, deferred, says in a call's error what failed.
func wrapError(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), pgerror.Explain(*err))
	}
}

// noRows is err, or instead of it what it means that a statement gave no row.
func noRows(err, meaning error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return meaning
	}
	return err
}

// Close ends all connections; it waits for the groups under way and for connections in use, at most Config.CloseWithin.
func (s *Store) Close() {
	s.claims.close()
	s.records.close()
	if s.closeWithin == 0 {
		s.pool.Close()
		return
	}
	closed := make(chan struct{})
	go func() { // ends with the pool, 15 s later at most
		defer close(closed)
		s.pool.Close()
	}()
	patience := time.NewTimer(s.closeWithin)
	defer patience.Stop()
	select {
	case <-closed:
	case <-patience.C:
	}
}

// Ping tells whether the database answers.
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

// PoolStat is what the pool gauge shows.
type PoolStat struct{ Acquired, Idle, Max int32 }

// PoolStat tells how busy the pool is.
func (s *Store) PoolStat() PoolStat {
	st := s.pool.Stat()
	return PoolStat{Acquired: st.AcquiredConns(), Idle: st.IdleConns(), Max: st.MaxConns()}
}

// GroupStat counts the groups in which claims or records were committed since the start, and what went in them. Of a
// group that failed each was tried alone.
type GroupStat struct{ Groups, Grouped, Failed int }

// GroupStats are of "claim" and "record".
func (s *Store) GroupStats() map[string]GroupStat {
	return map[string]GroupStat{"claim": s.claims.countGroups(), "record": s.records.countGroups()}
}

// Task is what is put into Redis: a delivery's id and the dispatch counter that makes the task the newest one.
type Task struct {
	ID       uuid.UUID
	N        int
	Kind     string
	Attempts int       // attempts made so far; more than none puts the task into the retry lane
	Bulk     bool      // a backfill's, or a replay's first attempt: it stands behind what comes for the first time
	At       time.Time // not before this; zero: now

	// Ended: this is no task to run but the one with which the delivery was held, waited or ended. The delivery goes on
	// without it, so that the web UI must not show it any more.
	Ended bool
}

func scanTask(row pgx.CollectableRow) (Task, error) {
	var t Task
	err := row.Scan(&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk)
	return t, err
}

// scanEnded reads a row of a statement that releases.
func scanEnded(row pgx.CollectableRow) (Task, error) {
	t := Task{Ended: true}
	err := row.Scan(&t.ID, &t.N)
	return t, err
}

// Agent names an agent by chain, IdentityRegistry (lower-case 0x address) and decimal token id.
type Agent struct {
	ChainID  uint64
	Registry string
	ID       string
}
