package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hurried is the tempo for real time. Leases are long compared with the rest, because a busy machine notices events
// late.
var hurried = tempo{unit: 20 * time.Millisecond, call: 200 * time.Millisecond, margin: 1500 * time.Millisecond, lease: 2 * time.Second,
	waits: []time.Duration{20 * time.Millisecond, 40 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 300 * time.Millisecond},
	slots: 4, interval: 300 * time.Millisecond, late: 800 * time.Millisecond, grace: 1500 * time.Millisecond, expiry: time.Hour,
	latency: 2 * time.Millisecond, statement: 700 * time.Millisecond, record: 600 * time.Millisecond, pause: 100 * time.Millisecond,
	recall: 300 * time.Millisecond, asynqLease: 600 * time.Millisecond, beat: 100 * time.Millisecond, net: 100 * time.Millisecond,
	whole: 20 * time.Millisecond, slack: 100 * time.Millisecond, patience: 2 * time.Minute, deliveries: 16, storms: 12, look: 8}

// postgresGround is a database of the history's own, with a second connection that the store does not use.
type postgresGround struct {
	storetest.Postgres
	t       *testing.T
	db      *pgxpool.Pool
	started atomic.Int64 // returned by Clock instead of the start of the server, which all histories share
}

// open opens a store on an existing, emptied database.
func (g *postgresGround) open(url string) error {
	st, err := store.Open(postgres.Config{URL: secret.New(url), MaxConns: 6})
	if err != nil {
		return err
	}
	st.StrictOrder = true
	pc, err := pgxpool.ParseConfig(url)
	if err == nil {
		pc.MaxConns = 1
		g.db, err = pgxpool.NewWithConfig(context.Background(), pc)
	}
	if err != nil {
		st.Close()
		return err
	}
	g.Postgres = storetest.JoinRecords(st)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := g.db.Exec(ctx, `TRUNCATE herald.history, herald.work, herald.attempts, herald.agents`); err != nil {
		g.close()
		return err
	}
	return nil
}

func (g *postgresGround) close() {
	g.Postgres.Close()
	g.db.Close()
}

// ask queries one row.
func (g *postgresGround) ask(sql string, args []any, into ...any) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := g.db.QueryRow(ctx, sql, args...).Scan(into...)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		g.t.Errorf("%s: %v", sql, err)
	}
	return err == nil
}

func (g *postgresGround) Held(id uuid.UUID) (no int64, until time.Time, running bool) {
	running = g.ask(`SELECT claim_no, lease_until FROM herald.deliveries WHERE id = $1 AND status = 'running'`, []any{id}, &no, &until)
	return no, until, running
}

func (g *postgresGround) MostDispatched() (most int) {
	g.ask(`SELECT coalesce(max(n), 0)::int FROM (SELECT count(*) AS n FROM herald.deliveries WHERE status IN ('queued', 'running')
		AND handed_at IS NOT NULL GROUP BY chain_id, identity_registry, agent_id) x`, nil, &most)
	return most
}

func (g *postgresGround) Open() (n int, held []uuid.UUID) {
	g.ask(`SELECT count(*)::int, array_agg(id) FILTER (WHERE status = 'held') FROM herald.deliveries WHERE finished_at IS NULL`, nil, &n, &held)
	return n, held
}

func (g *postgresGround) Restart() { g.started.Store(time.Now().UnixNano()) }

func (g *postgresGround) Clock(ctx context.Context) (now, started time.Time, err error) {
	now, _, err = g.Postgres.Clock(ctx)
	return now, time.Unix(0, g.started.Load()), err
}

// TestHistoriesOnPostgres runs histories on the real store in real time. They are fewer and shorter, with the same
// requirements.
func TestHistoriesOnPostgres(t *testing.T) {
	total, atOnce := int64(2), 2 // each costs more processor time than fifty in fake time
	if heraldtest.Soaks() {
		total, atOnce = 500, 20
	}
	l := newLab()
	urls := make([]string, atOnce)
	for i := range urls {
		urls[i] = heraldtest.Postgres(t, postgres.Migrate)
	}
	var next, failed atomic.Int64
	var all sync.WaitGroup
	for _, url := range urls {
		all.Go(func() {
			for seed := next.Add(1); seed <= total && failed.Load() < 3; seed = next.Add(1) {
				h := newHistory(uint64(seed), hurried, none, l.metrics, l.keys)
				g := &postgresGround{t: t}
				if err := g.open(url); err != nil {
					t.Error(err)
					return
				}
				h.ground = g
				h.run()
				g.close()
				l.add(h)
				if len(h.broken) > 0 {
					failed.Add(1)
					t.Errorf("seed %d\n%s", seed, h.story())
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d histories on Postgres; in how many of them it happened:\n%s", total, l.happened())
	for _, what := range []string{"killed", "process frozen", "Postgres down", "Redis emptied", "lease ran out", "outcome kept in Redis", "ended delivered"} {
		if len(l.seeds[what]) == 0 && heraldtest.Soaks() && !t.Failed() {
			t.Errorf("in none of the histories: %s", what)
		}
	}
}
