package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/secret"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed sql/*.sql
var files embed.FS

// HandOut is how many deliveries of one agent may be in Redis or running at a time (DESIGN §5). It keeps Redis shallow and
// one agent's flood from delaying the others.
const HandOut = 8

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

// ErrFenced means that the claim a write named is no longer the row's: the lease ran out and another worker has the
// delivery. The write changed nothing.
var ErrFenced = errors.New("the claim on this delivery is lost: its lease ran out and another worker took it")

// ErrNotFound means that no such row exists.
var ErrNotFound = errors.New("not found")

// Config says how to reach Postgres.
type Config struct {
	URL secret.Secret // postgres:// URL or key=value string, needed

	// MaxConns is the pool's size. It must exceed the worker's concurrency, or deliveries wait for connections.
	// Default 10.
	MaxConns int32

	// ConnectTimeout bounds one attempt to connect. Default 5 s.
	ConnectTimeout time.Duration

	// StatementTimeout is set on every session, so that a lost client cannot leave a statement holding locks. Default 30 s.
	StatementTimeout time.Duration
}

// Store is a pool of connections to one database. Safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	sql  statements
}

// statements are the texts of sql/*.sql, read once.
type statements struct {
	claim, record, totals, dispatch, makeAgents, lockAgents, accept, reopen, displace string
	expireLeases, due, overdue, redispatch, backlog                                   string
}

// Open prepares a pool. It does not connect: a database that is away shows in Ping and in the first call.
func Open(cfg Config) (*Store, error) {
	if cfg.URL.IsZero() {
		return nil, errors.New("store: a database URL is needed (DATABASE_URL)")
	}
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		// The parser's error may quote the URL, and with it the password.
		return nil, errors.New("store: DATABASE_URL is not a Postgres URL (postgres://user@host/database)")
	}
	pc.MaxConns = 10
	if cfg.MaxConns > 0 {
		pc.MaxConns = cfg.MaxConns
	}
	pc.ConnConfig.ConnectTimeout = orDefault(cfg.ConnectTimeout, 5*time.Second)
	statement := orDefault(cfg.StatementTimeout, 30*time.Second)
	pc.ConnConfig.RuntimeParams["statement_timeout"] = fmt.Sprint(statement.Milliseconds())
	pc.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(statement.Milliseconds())
	pc.ConnConfig.RuntimeParams["timezone"] = "UTC"
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "herald"
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{pool: pool}
	for name, text := range map[string]*string{
		"claim": &s.sql.claim, "record": &s.sql.record, "totals": &s.sql.totals, "dispatch": &s.sql.dispatch,
		"make_agents": &s.sql.makeAgents, "lock_agents": &s.sql.lockAgents, "accept": &s.sql.accept,
		"reopen": &s.sql.reopen, "displace": &s.sql.displace, "expire_leases": &s.sql.expireLeases, "due": &s.sql.due,
		"overdue": &s.sql.overdue, "redispatch": &s.sql.redispatch, "backlog": &s.sql.backlog,
	} {
		b, err := files.ReadFile("sql/" + name + ".sql")
		if err != nil {
			pool.Close()
			return nil, fmt.Errorf("store: %w", err)
		}
		*text = string(b)
	}
	return s, nil
}

// Close ends all connections; it waits for those in use.
func (s *Store) Close() { s.pool.Close() }

// Ping tells whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach Postgres: %w", Plain(err))
	}
	return nil
}

// PoolStat is what the pool gauge shows.
type PoolStat struct{ Acquired, Idle, Max int32 }

// PoolStat tells how busy the pool is.
func (s *Store) PoolStat() PoolStat {
	st := s.pool.Stat()
	return PoolStat{Acquired: st.AcquiredConns(), Idle: st.IdleConns(), Max: st.MaxConns()}
}

// Task is what is put into Redis: a delivery's id and the dispatch counter that makes the task the newest one.
type Task struct {
	ID       uuid.UUID
	N        int
	Kind     string
	Attempts int       // attempts made so far; more than none puts the task into the retry lane
	At       time.Time // not before this; zero: now
}

func scanTask(row pgx.CollectableRow) (Task, error) {
	var t Task
	var now time.Time
	err := row.Scan(&t.ID, &t.N, &t.Kind, &t.Attempts, &now)
	return t, err
}

// Agent names an agent by chain, IdentityRegistry (lower-case 0x address) and decimal token id.
type Agent struct {
	ChainID  uint64
	Registry string
	ID       string
}

// Plain rewrites a connection error without the connection string that pgx puts into it.
func Plain(err error) error {
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) {
		return fmt.Errorf("connect to %s: %w", hostOf(ce), ce.Unwrap())
	}
	return err
}

func hostOf(ce *pgconn.ConnectError) string {
	if ce.Config == nil {
		return "Postgres"
	}
	if strings.HasPrefix(ce.Config.Host, "/") {
		return "the Postgres socket in " + ce.Config.Host
	}
	return fmt.Sprintf("Postgres at %s:%d", ce.Config.Host, ce.Config.Port)
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}
