// Package postgres opens the connections to Herald's database, which the ledger (internal/store), the operator's
// records (internal/store/records) and the retention (internal/store/retention) share. It also migrates the schema,
// acquires advisory locks and reads SQL files.
//
// Every call of these packages ends: StartCall gives a context without a deadline one.
package postgres

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
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config configures the connections to Postgres.
type Config struct {
	URL secret.Secret // postgres:// URL or key=value string; required

	// LeaderURL is the address of Postgres itself, needed if URL leads to a pooler in transaction mode. The advisory
	// locks of Lead and LeadLocks then use connections to LeaderURL, because such a pooler would lose them. The
	// settings of the pooler's sessions must be set in Postgres (CheckPooler). Empty: URL leads to Postgres itself.
	LeaderURL secret.Secret

	// MaxConns is the size of the pool. It must exceed the number of deliveries that the worker processes at a time, or
	// deliveries wait for connections. The locks of Lead and LeadLocks keep one connection. Default 10, at least 2.
	MaxConns int32

	// Locks is the pool whose connection has the advisory locks of Lead and LeadLocks. Nil: Open creates a pool for
	// LeaderURL; if LeaderURL is empty, a connection of the new pool itself has the locks.
	Locks *Pool

	// ConnectTimeout bounds one attempt to connect to a host. Default: connect_timeout of URL, else 5 s.
	ConnectTimeout time.Duration

	// StatementTimeout is set on every session, so that a statement whose client is lost cannot keep its locks. A call
	// without an earlier deadline gives up after StatementTimeout plus ConnectTimeout, even if the network does not
	// respond. Default 30 s.
	StatementTimeout time.Duration
	// CloseWithin limits the duration of Close, for a command that exits afterwards: pgx waits up to 15 s for the
	// server to acknowledge the end of a connection whose statement hit a deadline. Zero: no limit.
	CloseWithin time.Duration
}

// CommandClose is the value of Config.CloseWithin that Herald's commands use.
const CommandClose = 300 * time.Millisecond

// Pool is a pool of connections to one database. Safe for concurrent use.
type Pool struct {
	Conns *pgxpool.Pool // runs the statements of internal/store and its subpackages

	timeout     time.Duration // deadline of a call whose context has no earlier one
	closeWithin time.Duration // Config.CloseWithin
	silent      *atomic.Bool  // whether the last call timed out; nil: LimitCalls was not called
	diskChecked *atomic.Int64 // when checkDisk found room last, in Unix nanoseconds; 0: a statement found none since

	leaders *leaders          // acquires the advisory locks of Lead and LeadLocks; shared with Config.Locks, if set
	direct  *Pool             // connections to Config.LeaderURL; nil: LeaderURL is empty, or Config.Locks is set
	needed  map[string]string // settings that the sessions must have
}

// idleInTransaction is how long Postgres waits for the next statement of an open transaction before it ends the
// session. Herald waits for nothing between two statements. So a client that takes longer is frozen or cut off, and
// would keep its locks on agents.
const idleInTransaction = 10 * time.Second

// readOnly is the SQLSTATE of a refused write. A session stays read-only if it began while the database was read-only,
// or if the server has become a standby. So the refusal closes the connection, and the next call connects again.
// Otherwise the pool would use that connection for up to an hour.
const readOnly = "25006"

// diskFull is the SQLSTATE of a write for which the disk has no room.
const diskFull = "53100"

// diskInterval is how often CheckWritable checks the disk as long as no statement found it full. Postgres may log each
// check (log_temp_files).
const diskInterval = time.Minute

// lastCalls limits a call that follows a call that timed out (LimitCalls).
const lastCalls = 200 * time.Millisecond

// LimitCalls limits the duration of each later call to d, for a command that exits after a few calls. After a call that
// timed out, calls are limited to lastCalls, until one of them ends in time. LimitCalls must be called before every
// other method.
func (p *Pool) LimitCalls(d time.Duration) { p.timeout, p.silent = d, new(atomic.Bool) }

// Open creates a pool of connections. It does not connect: an unreachable database makes Ping and the first call fail.
func Open(cfg Config) (*Pool, error) { return OpenAdjusted(cfg, func(*pgxpool.Config) {}) }

// OpenAdjusted is Open with a function that may change the pool's configuration. Tests use it, for example to record
// statements.
func OpenAdjusted(cfg Config, adjust func(*pgxpool.Config)) (*Pool, error) {
	if cfg.URL.IsZero() {
		return nil, errors.New("store: a database URL is needed (DATABASE_URL)")
	}
	if cfg.MaxConns < 0 || cfg.MaxConns == 1 {
		return nil, fmt.Errorf("store: a pool of %d connections is too small (HERALD_DB_POOL): it needs at least 2",
			cfg.MaxConns)
	}
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		return nil, fmt.Errorf("store: %w", explainURL(err))
	}
	pc.MaxConns = 10
	if cfg.MaxConns > 0 {
		pc.MaxConns = cfg.MaxConns
	}
	pc.ConnConfig.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, pc.ConnConfig.ConnectTimeout, defaultConnectTimeout)
	statement := cmp.Or(cfg.StatementTimeout, 30*time.Second)
	p := &Pool{timeout: statement + pc.ConnConfig.ConnectTimeout, closeWithin: cfg.CloseWithin,
		diskChecked: new(atomic.Int64), needed: sessionSettings(statement)}
	params := pc.ConnConfig.RuntimeParams
	setFormats(params)
	if params["application_name"] == "" {
		params["application_name"] = "herald"
	}
	if cfg.LeaderURL.IsZero() {
		maps.Copy(params, p.needed)
	} else {
		// Old poolers lose prepared statements after a transaction. So by default pgx uses no named ones here. The URL
		// may set another mode (default_query_exec_mode), for a pooler that keeps prepared statements.
		if !strings.Contains(cfg.URL.Reveal(), "default_query_exec_mode") {
			pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
	}
	keepsConn := pc.ConnConfig.OnPgError
	pc.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == diskFull {
			p.diskChecked.Store(0)
		}
		return err.Code != readOnly && keepsConn(conn, err)
	}
	pc.ConnConfig.Tracer = newSessionGate()
	adjust(pc)
	if p.Conns, err = pgxpool.NewWithConfig(context.Background(), pc); err != nil {
		return nil, fmt.Errorf("store: %w", pgerror.Explain(err))
	}
	p.leaders = &leaders{pool: p, maxIdle: lockMaxIdle, held: map[int64]struct{}{}}
	switch {
	case cfg.Locks != nil:
		p.leaders = cfg.Locks.leaders
	case !cfg.LeaderURL.IsZero():
		direct := Config{URL: cfg.LeaderURL, MaxConns: 2, ConnectTimeout: cfg.ConnectTimeout,
			CloseWithin: cfg.CloseWithin}
		if p.direct, err = Open(direct); err != nil {
			p.Conns.Close()
			return nil, err
		}
		p.leaders = p.direct.leaders
	}
	return p, nil
}

// setFormats sets the settings of a session that change how values are sent. The role or the database may have others:
// with client_encoding LATIN1, a row with 好 cannot be read. With a time zone such as Asia/Shanghai, whose abbreviation
// CST Postgres reads as another zone's, and the DateStyle SQL, the migration would create partitions of other weeks.
func setFormats(params map[string]string) {
	params["timezone"], params["client_encoding"] = "UTC", "UTF8"
}

// sessionSettings returns the Postgres settings of a session. statement is its statement_timeout. The settings make
// Postgres plan each statement once per session, with index scans. Planning a statement each time would cost more than
// running it. A plan without indexes, made for an empty table (a new week's attempts, an empty queue), would be very
// slow a minute later. A bitmap scan does not mark the index entries of deleted rows as dead, so that every later scan
// would read these rows of herald.work again. The ledger's statements lock rows, and then read rows that other
// transactions have committed. So each statement needs its own snapshot (read committed).
func sessionSettings(statement time.Duration) map[string]string {
	return map[string]string{
		"statement_timeout":                   fmt.Sprint(statement.Milliseconds()),
		"idle_in_transaction_session_timeout": fmt.Sprint(min(statement, idleInTransaction).Milliseconds()),
		"default_transaction_isolation":       "read committed",
		"plan_cache_mode":                     "force_generic_plan",
		"enable_seqscan":                      "off", "enable_bitmapscan": "off", "jit": "off"}
}

const defaultConnectTimeout = 5 * time.Second

var errURL = errors.New("DATABASE_URL is not a Postgres URL (postgres://user:password@host/database). Write special " +
	"characters of user and password as their code, such as %40 for @, %2F for /, %3F for ?, %23 for # and %25 for %")

// explainURL returns the error for a URL that the parser refused with err. It names the cause if that is the setup of
// TLS, such as a missing file of an authority, or a service (PGSERVICE) that no file defines. Other causes may quote
// the URL, and with it the password, also that of connect_timeout.
func explainURL(err error) error {
	refused, ok := errors.AsType[*pgconn.ParseConfigError](err)
	if !ok {
		return errURL
	}
	cause := refused.Unwrap()
	const where = "DATABASE_URL or HERALD_LEADER_DATABASE_URL"
	for _, failed := range []string{"failed to configure TLS", "failed to read service"} {
		if cause != nil && strings.HasSuffix(refused.Error(), ": "+failed+" ("+cause.Error()+")") {
			// The cause is not wrapped: pgerror.Explain would take a failed read of a file for one of the network.
			return fmt.Errorf("%s: %s: %s", where, failed, cause.Error())
		}
	}
	if cause != nil && strings.HasSuffix(refused.Error(), ": invalid connect_timeout ("+cause.Error()+")") {
		return errors.New(where + ": connect_timeout is not a number of seconds")
	}
	return errURL
}

// WithDeadline returns a context that ends when ctx ends, and at the latest when a call must end
// (Config.StatementTimeout, LimitCalls).
func (p *Pool) WithDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.silent == nil {
		return context.WithTimeout(ctx, p.timeout)
	}
	limit := p.timeout
	if p.silent.Load() {
		limit = min(limit, lastCalls)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	return ctx, func() {
		p.silent.Store(errors.Is(ctx.Err(), context.DeadlineExceeded))
		cancel()
	}
}

// WrapError prefixes *err with a description of the failed action, which it formats like fmt.Sprintf. It does nothing
// if *err is nil. If Postgres is unreachable, it also replaces the error by a short explanation. Callers defer it.
func WrapError(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), pgerror.Explain(*err))
	}
}

// StartCall is WithDeadline together with WrapError: the returned function, which the caller defers, wraps *err and
// releases the context.
func (p *Pool) StartCall(ctx context.Context, err *error, what string, args ...any) (context.Context, func()) {
	ctx, cancel := p.WithDeadline(ctx)
	return ctx, func() {
		WrapError(err, what, args...)
		cancel()
	}
}

// NoRows replaces pgx.ErrNoRows by another error (meaning), which may be nil. It returns any other err unchanged.
func NoRows(err, meaning error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return meaning
	}
	return err
}

// Close closes all connections. It waits for connections in use; Config.CloseWithin limits this wait.
func (p *Pool) Close() {
	if p.direct != nil {
		defer p.direct.Close()
	}
	if p.closeWithin == 0 {
		p.Conns.Close()
		return
	}
	closed := make(chan struct{})
	go func() { // ends when the pool is closed, after 15 s at most
		defer close(closed)
		p.Conns.Close()
	}()
	timeout := time.NewTimer(p.closeWithin)
	defer timeout.Stop()
	select {
	case <-closed:
	case <-timeout.C:
	}
}

// Clock returns Postgres' time, and the time when Postgres started.
func (p *Pool) Clock(ctx context.Context) (now, started time.Time, err error) {
	ctx, end := p.StartCall(ctx, &err, "read the clock of Postgres")
	defer end()
	err = p.Conns.QueryRow(ctx, `SELECT clock_timestamp(), pg_postmaster_start_time()`).Scan(&now, &started)
	return now, started, err
}

// Ping returns an error with a short explanation if the database does not answer.
func (p *Pool) Ping(ctx context.Context) error {
	ctx, cancel := p.WithDeadline(ctx)
	defer cancel()
	err := p.Conns.Ping(ctx)
	if err == nil {
		return nil
	}
	if plain := pgerror.Explain(err); plain != err {
		return plain
	}
	return fmt.Errorf("ask Postgres: %w", netguard.Explain("it", 0, err))
}

// PingWritable is Ping, but also returns an error if the database takes no writes, for example because it is a standby.
// It then closes the pool's connections, because their sessions could stay read-only (readOnly).
func (p *Pool) PingWritable(ctx context.Context) error {
	if err := p.Ping(ctx); err != nil {
		return err
	}
	ctx, cancel := p.WithDeadline(ctx)
	defer cancel()
	var isReadOnly bool
	// Without a prepared statement, which a pooler would lose before CheckPooler can name it.
	err := p.Conns.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::bool`, pgx.QueryExecModeExec).
		Scan(&isReadOnly)
	if err == nil && isReadOnly {
		defer p.Conns.Reset()
		return p.explainReadOnly(ctx)
	}
	return err
}

// explainReadOnly returns an error that says why the database is read-only.
func (p *Pool) explainReadOnly(ctx context.Context) error {
	var isStandby bool
	var source string // "database", "user", "database user", "configuration file", …
	err := p.Conns.QueryRow(ctx, `SELECT pg_is_in_recovery(), source FROM pg_settings
		WHERE name = 'default_transaction_read_only'`, pgx.QueryExecModeExec).Scan(&isStandby, &source)
	switch {
	case err != nil:
		return err
	case isStandby:
		return errors.New("the database answers but is read-only: it is a standby. If DATABASE_URL names several " +
			"hosts, append target_session_attrs=read-write to it")
	}
	return fmt.Errorf("the database answers but is read-only: default_transaction_read_only is on (set by: %s). Some "+
		"providers set it while the disk is full. Otherwise reset it, for example with ALTER ROLE or ALTER DATABASE",
		source)
}

// CheckWritable is PingWritable, but also returns an error if the database's disk is full. A worker starts in spite of
// a full disk, because it can delete old data.
func (p *Pool) CheckWritable(ctx context.Context) error {
	if err := p.PingWritable(ctx); err != nil {
		return err
	}
	if time.Since(time.Unix(0, p.diskChecked.Load())) < diskInterval {
		return nil
	}
	return p.checkDisk(ctx)
}

// checkDisk makes Postgres write a temporary file of 150 kB. It returns an error if the disk has no room for it. A
// row would be no check: on a full disk, Postgres still writes rows into pages that have room.
func (p *Pool) checkDisk(ctx context.Context) error {
	ctx, cancel := p.WithDeadline(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, p.Conns, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL work_mem = '64kB'`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT count(*) FROM generate_series(1, 10000)`)
		return err
	})
	var answer *pgconn.PgError
	switch refused := errors.As(err, &answer); {
	case refused && answer.Code == diskFull:
		return fmt.Errorf("the database answers, but its disk is full: %w", answer)
	case err != nil && !refused:
		return err
	}
	p.diskChecked.Store(time.Now().UnixNano()) // also if Postgres refused the file for another reason (temp_file_limit)
	return nil
}

// PoolStat has the number of connections in use (Acquired), of idle ones, and the size of the pool (Max).
type PoolStat struct{ Acquired, Idle, Max int32 }

// PoolStat returns the current state of the connection pool.
func (p *Pool) PoolStat() PoolStat {
	st := p.Conns.Stat()
	return PoolStat{Acquired: st.AcquiredConns(), Idle: st.IdleConns(), Max: st.MaxConns()}
}

// Querier is the method for reading that a pool and a transaction have in common.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
