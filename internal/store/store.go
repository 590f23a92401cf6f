package store

import (
	"cmp"
	"context"
	"embed"
	"sync/atomic"

	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
)

// maxResponsesPerAgent limits how many of an agent's dispatched deliveries may be responses (ResponseAppended), because
// anyone may write responses on the chain.
const maxResponsesPerAgent = 2

//go:embed sql/*.sql sql/parts/*.sql
var files embed.FS

var statements = postgres.ReadStatements(files)

// queueNamed queues a statement whose arguments have names.
func queueNamed(b *pgx.Batch, st postgres.Statement, args pgx.NamedArgs) *pgx.QueuedQuery {
	return b.Queue(st.Text, st.Args(args)...)
}

// queryNamed runs a statement whose arguments have names.
func queryNamed(ctx context.Context, q postgres.Querier, st postgres.Statement, args pgx.NamedArgs) (pgx.Rows, error) {
	return q.Query(ctx, st.Text, st.Args(args)...)
}

// Store is the ledger. Safe for concurrent use.
type Store struct {
	*postgres.Pool
	*cursor.Table

	// StrictOrder keeps the order of the deliveries of each ordering key (docs/design/delivery.md): one of them is
	// called at a time, the one with the lowest index first. The policy of an agent (Policy.Order) and the default
	// policy (UseOrder) override it. All workers of a database need the same value. It must be set before deliveries
	// are accepted.
	StrictOrder bool

	order   func() string                                        // UseOrder
	claims  *coalescer.Coalescer[claimRequest, *ledger.Claim]    // groups claims
	records *coalescer.Coalescer[recordRequest, ledger.Recorded] // groups plain outcomes

	leases, line        atomic.Value // erc8004.Agent: the last agent that ExpireLeases and Backlog read
	leasePart, linePart int          // how many dispatched deliveries, and how many agents, a call of them reads
}

// UseOrder sets the order of the default policy: order returns a value of Policy.Order, or "" for that of StrictOrder.
// UseOrder must be called before deliveries are accepted.
func (s *Store) UseOrder(order func() string) { s.order = order }

// defaultOrder returns the order of the deliveries of agents whose own policy has none.
func (s *Store) defaultOrder() string {
	order := policy.OrderOff
	if s.StrictOrder {
		order = policy.OrderStrict
	}
	if s.order != nil {
		order = cmp.Or(s.order(), order)
	}
	return order
}

// Open opens a ledger on a pool of its own. It does not connect (postgres.Open).
func Open(cfg postgres.Config) (*Store, error) {
	pool, err := postgres.Open(cfg)
	if err != nil {
		return nil, err
	}
	return New(pool), nil
}

// New returns a ledger on the pool. Its Close closes the pool.
func New(pool *postgres.Pool) *Store {
	s := &Store{Pool: pool, Table: cursor.New(pool), leasePart: 200_000, linePart: 10_000}
	s.claims = coalescer.New(coalescer.Config[claimRequest, *ledger.Claim]{
		Flush: s.claimGroup, Single: s.claimAlone, Min: 1})
	s.records = coalescer.New(coalescer.Config[recordRequest, ledger.Recorded]{
		Flush: s.recordGroup, Single: s.recordAlone})
	return s
}

// Close closes the pool. It first waits for running groups of claims and outcomes.
func (s *Store) Close() {
	s.claims.Close()
	s.records.Close()
	s.Pool.Close()
}

// GroupStats returns the counts of the groups of claims, under the key "claim", and of outcomes, under "record", since
// the store was opened.
func (s *Store) GroupStats() map[string]coalescer.Stats {
	return map[string]coalescer.Stats{"claim": s.claims.Stats(), "record": s.records.Stats()}
}

func scanTask(row pgx.CollectableRow) (ledger.Task, error) {
	var t ledger.Task
	err := row.Scan(&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk)
	return t, err
}

// scanEnded reads the id and n of a task that has ended (Task.Ended).
func scanEnded(row pgx.CollectableRow) (ledger.Task, error) {
	t := ledger.Task{Ended: true}
	err := row.Scan(&t.ID, &t.N)
	return t, err
}
