package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxDispatchedPerAgent limits the dispatched deliveries of one agent: those with a task in Redis, and those that are
// running. The limit keeps the queues in Redis short, and keeps many deliveries of one agent from delaying those of
// other agents.
const MaxDispatchedPerAgent = 8

// maxResponsesPerAgent limits how many of an agent's dispatched deliveries may be responses (ResponseAppended), because
// anyone may write responses on the chain.
const maxResponsesPerAgent = 2

// Status is the state of a delivery (docs/design/delivery.md).
type Status string

// All statuses. The package comment says when a final status changes.
const (
	Queued    Status = "queued"    // ready: in its agent's backlog, or dispatched with a task in Redis
	Running   Status = "running"   // claimed by a worker
	Waiting   Status = "waiting"   // until the time of its next attempt, or until another delivery has ended
	Held      Status = "held"      // until an operator or a setting releases it
	Delivered Status = "delivered" // the agent accepted it
	Skipped   Status = "skipped"   // no call was needed
	Rejected  Status = "rejected"  // no attempt can succeed, because of the job, the event or the agent's answer
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

// ErrFenced is returned by a write whose claim is lost: its lease expired, an operator cancelled the delivery, or an
// earlier claim's attempt succeeded and ended the delivery. The write changed nothing, except as described at Record.
var ErrFenced = errors.New("the claim on this delivery is lost: its lease ran out and another worker continued it")

// ErrStale is returned by Adopt if the attempt to which the outcome belongs already has an outcome, or was deleted
// because it did not count (Outcome.Free). The write changed nothing, and the claim is still valid.
var ErrStale = errors.New("the outcome belongs to an attempt that has been recorded already")

// ErrNotFound is returned when the requested row does not exist.
var ErrNotFound = errors.New("not found")

// Config configures the connections to Postgres.
type Config struct {
	URL secret.Secret // postgres:// URL or key=value string; required

	// LeaderURL is the address of Postgres itself, needed if URL leads to a pooler in transaction mode. The advisory
	// locks of Lead and LeadChain then use connections to LeaderURL, because such a pooler would lose them. The
	// settings of the pooler's sessions must be set in Postgres (CheckPooler). Empty: URL leads to Postgres itself.
	LeaderURL secret.Secret

	// MaxConns is the size of the pool. It must exceed the number of deliveries that the worker processes at a time, or
	// deliveries wait for connections. The locks of Lead and LeadChain keep one connection. Default 10, at least 2.
	MaxConns int32

	// Locks is the store whose connection has the advisory locks of Lead and LeadChain. Nil: Open creates a store for
	// LeaderURL; if LeaderURL is empty, a connection of the new store itself has the locks.
	Locks *Store

	// ConnectTimeout bounds one attempt to connect. Default 5 s.
	ConnectTimeout time.Duration

	// StrictOrder keeps the order of the deliveries of each ordering key (docs/design/delivery.md): one of them is
	// called at a time, the one with the lowest index first. The policy of an agent (Policy.Order) and the default
	// policy (UseOrder) override it. All workers of a database need the same value.
	StrictOrder bool

	// StatementTimeout is set on every session, so that a statement whose client is lost cannot keep its locks. A call
	// of this package without an earlier deadline gives up after StatementTimeout plus ConnectTimeout, even if the
	// network does not respond. Default 30 s.
	StatementTimeout time.Duration
	// CloseWithin limits the duration of Close, for a command that exits afterwards: pgx waits up to 15 s for the
	// server to acknowledge the end of a connection whose statement hit a deadline. Zero: no limit.
	CloseWithin time.Duration
}

// CommandClose is the value of Config.CloseWithin that Herald's commands use.
const CommandClose = 300 * time.Millisecond

// Store is a pool of connections to one database. Safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration // deadline of a call whose context has no earlier one
	strict  bool          // Config.StrictOrder
	order   func() string // UseOrder

	closeWithin time.Duration // Config.CloseWithin
	silent      *atomic.Bool  // whether the last call timed out; nil: LimitCalls was not called

	leaders *leaders          // acquires the advisory locks of Lead and LeadChain; shared with Config.Locks, if set
	direct  *Store            // connections to Config.LeaderURL; nil: LeaderURL is empty, or Config.Locks is set
	needed  map[string]string // settings that the pooler's sessions must have; nil: there is no pooler

	claims  *coalescer[claimRequest, *Claim]    // groups claims
	records *coalescer[recordRequest, Recorded] // groups plain outcomes
}

// idleInTransaction is how long Postgres waits for the next statement of an open transaction before it ends the
// session. This package waits for nothing between two statements. So a client that takes longer is frozen or cut off,
// and would keep its locks on agents.
const idleInTransaction = 10 * time.Second

// lastCalls limits a call that follows a call that timed out (LimitCalls).
const lastCalls = 200 * time.Millisecond

// UseOrder sets the order of the default policy: order returns a value of Policy.Order, or "" for that of
// Config.StrictOrder. UseOrder must be called before deliveries are accepted.
func (s *Store) UseOrder(order func() string) { s.order = order }

// defaultOrder returns the order of the deliveries of agents whose own policy has none.
func (s *Store) defaultOrder() string {
	order := OrderOff
	if s.strict {
		order = OrderStrict
	}
	if s.order != nil {
		order = cmp.Or(s.order(), order)
	}
	return order
}

// LimitCalls limits the duration of each later call to d, for a command that exits after a few calls. After a call that
// timed out, calls are limited to lastCalls, until one of them ends in time. LimitCalls must be called before every
// other method.
func (s *Store) LimitCalls(d time.Duration) { s.timeout, s.silent = d, new(atomic.Bool) }

// Open creates a pool of connections. It does not connect: an unreachable database makes Ping and the first call fail.
func Open(cfg Config) (*Store, error) { return openPool(cfg, func(*pgxpool.Config) {}) }

// openPool is Open with a function that may change the pool's configuration, for tests.
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
	s := &Store{timeout: statement + pc.ConnConfig.ConnectTimeout, closeWithin: cfg.CloseWithin,
		strict: cfg.StrictOrder}
	params := pc.ConnConfig.RuntimeParams
	params["timezone"] = "UTC"
	if params["application_name"] == "" {
		params["application_name"] = "herald"
	}
	if settings := sessionSettings(statement); cfg.LeaderURL.IsZero() {
		maps.Copy(params, settings)
	} else {
		s.needed = settings
		// Old poolers lose prepared statements after a transaction. So by default pgx uses no named ones here. The URL
		// may set another mode (default_query_exec_mode), for a pooler that keeps prepared statements.
		if !strings.Contains(cfg.URL.Reveal(), "default_query_exec_mode") {
			pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}
	adjust(pc)
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), pc); err != nil {
		return nil, fmt.Errorf("store: %w", pgerror.Explain(err))
	}
	s.leaders = &leaders{store: s, held: map[int64]struct{}{}}
	switch {
	case cfg.Locks != nil:
		s.leaders = cfg.Locks.leaders
	case s.needed != nil:
		direct := Config{URL: cfg.LeaderURL, MaxConns: 2, ConnectTimeout: cfg.ConnectTimeout,
			CloseWithin: cfg.CloseWithin}
		if s.direct, err = Open(direct); err != nil {
			s.pool.Close()
			return nil, err
		}
		s.leaders = s.direct.leaders
	}
	s.claims = newCoalescer(coalescerConfig[claimRequest, *Claim]{flush: s.claimGroup, single: s.claimAlone, min: 1})
	s.records = newCoalescer(coalescerConfig[recordRequest, Recorded]{flush: s.recordGroup, single: s.recordAlone})
	return s, nil
}

// sessionSettings returns the Postgres settings of a session. statement is its statement_timeout. The settings make
// Postgres plan each statement once per session, with index scans. Planning a statement each time would cost more than
// running it. A plan without indexes, made for an empty table (a new week's attempts, an empty queue), would be very
// slow a minute later. A bitmap scan does not mark the index entries of deleted rows as dead, so that every later scan
// would read these rows of herald.work again.
func sessionSettings(statement time.Duration) map[string]string {
	return map[string]string{
		"statement_timeout":                   fmt.Sprint(statement.Milliseconds()),
		"idle_in_transaction_session_timeout": fmt.Sprint(min(statement, idleInTransaction).Milliseconds()),
		"plan_cache_mode":                     "force_generic_plan",
		"enable_seqscan":                      "off", "enable_bitmapscan": "off", "jit": "off"}
}

const defaultConnectTimeout = 5 * time.Second

var errURL = errors.New("DATABASE_URL is not a Postgres URL (postgres://user@host/database)")

// withDeadline returns a context that ends when ctx ends, and at the latest when a call of this package must end
// (Config.StatementTimeout, LimitCalls).
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

// wrapError prefixes *err with a description of the failed action, which it formats like fmt.Sprintf. It does nothing
// if *err is nil. If Postgres is unreachable, it also replaces the error by a short explanation. Callers defer it.
func wrapError(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), pgerror.Explain(*err))
	}
}

// noRows replaces pgx.ErrNoRows by another error (meaning), which may be nil. It returns any other err unchanged.
func noRows(err, meaning error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return meaning
	}
	return err
}

// Close closes all connections. It first waits for running groups of claims and outcomes. Then it waits for connections
// in use; Config.CloseWithin limits this second wait.
func (s *Store) Close() {
	s.claims.close()
	s.records.close()
	if s.direct != nil {
		defer s.direct.Close()
	}
	if s.closeWithin == 0 {
		s.pool.Close()
		return
	}
	closed := make(chan struct{})
	go func() { // ends when the pool is closed, after 15 s at most
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

// Ping returns an error with a short explanation if the database does not answer.
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

// PoolStat has the number of connections in use (Acquired), of idle ones, and the size of the pool (Max).
type PoolStat struct{ Acquired, Idle, Max int32 }

// PoolStat returns the current state of the connection pool.
func (s *Store) PoolStat() PoolStat {
	st := s.pool.Stat()
	return PoolStat{Acquired: st.AcquiredConns(), Idle: st.IdleConns(), Max: st.MaxConns()}
}

// GroupStat counts, since the store was opened, the groups of requests that ran in one statement, the requests in them
// (Grouped), and the groups that failed. The requests of a failed group were then run one by one.
type GroupStat struct{ Groups, Grouped, Failed int }

// GroupStats returns the counts of the groups of claims, under the key "claim", and of outcomes, under "record".
func (s *Store) GroupStats() map[string]GroupStat {
	return map[string]GroupStat{"claim": s.claims.countGroups(), "record": s.records.countGroups()}
}

// Task is a task of a delivery that the caller must put into Redis, or remove there if Ended is set. N is the
// delivery's dispatch counter: a task whose N is not the present value cannot claim the delivery.
type Task struct {
	ID       uuid.UUID
	N        int
	Kind     string
	Attempts int // number of earlier attempts; above 0, the task goes to the lane retry
	// Bulk sends the task to the lane bulk: a queue in Redis that workers serve seldom while other lanes have tasks. It
	// is set if the delivery is part of a backfill, or was replayed and not attempted since.
	Bulk bool
	At   time.Time // earliest time at which the task may run; zero: now

	// Ended: the delivery was released, replayed or cancelled, and no longer needs this task. The caller removes the
	// task from Redis.
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

// Agent identifies an agent.
type Agent = erc8004.Agent

// scanAgent reads an agent.
func scanAgent(row pgx.CollectableRow) (a Agent, err error) {
	err = row.Scan(&a.ChainID, &a.Registry, &a.ID)
	return a, err
}
