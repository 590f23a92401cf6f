package store

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// newStore returns a store on a migrated database of the test's own.
func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, heraldtest.Postgres(t, postgres.Migrate))
}

func openStore(t testing.TB, url string) *Store {
	t.Helper()
	return openAdjusted(t, url, 12, func(*pgxpool.Config) {})
}

// openAdjusted opens a store. adjust may change the configuration of its pool.
func openAdjusted(t testing.TB, url string, conns int32, adjust func(*pgxpool.Config)) *Store {
	t.Helper()
	pool, err := postgres.OpenAdjusted(postgres.Config{URL: secret.New(url), MaxConns: conns}, adjust)
	heraldtest.Must(t, err)
	s := New(pool)
	t.Cleanup(s.Close)
	return s
}

// emptyStore deletes the rows of s, except of verified_chains, for the next of several cases. A new database costs more
// than most cases.
func emptyStore(t testing.TB, s *Store) {
	t.Helper()
	exec(t, s, `DO $$ DECLARE r regclass; BEGIN
		FOR r IN SELECT oid FROM pg_class WHERE relnamespace = 'herald'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
			AND relname NOT IN ('migrations', 'verified_chains') LOOP
			EXECUTE format('DELETE FROM %s', r);
		END LOOP; END $$`)
}

const lease = 2 * time.Minute

var (
	registry   = common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432")
	reputation = common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63")
	client     = common.HexToAddress("0x00000000000000000000000000000000000000c1")
)

// feedback returns the NewFeedback with the given index of an agent.
func feedback(agent, index int) job.Job {
	return job.Job{Kind: job.KindNewFeedback, ChainID: 8453, ReputationRegistry: reputation, IdentityRegistry: registry,
		AgentID: big.NewInt(int64(agent)), ClientAddress: client, FeedbackIndex: uint64(index), Value: big.NewInt(9977), ValueDecimals: 2,
		Tag1: "uptime", BlockNumber: 1000, Action: job.Action{ToolName: "agent.receiveFeedback", ResolveEndpoint: true}}
}

func feedbacks(agent, from, n int) []ledger.Intake {
	in := make([]ledger.Intake, n)
	for i := range in {
		in[i].Job = feedback(agent, from+i)
	}
	return in
}

func agentNamed(id string) erc8004.Agent {
	return erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registry.Hex()), ID: id}
}

func accept(t testing.TB, s *Store, in ...ledger.Intake) ([]ledger.Acceptance, []ledger.Task) {
	t.Helper()
	out, tasks, err := s.Accept(t.Context(), in)
	heraldtest.Must(t, err)
	return out, tasks
}

// acceptOne accepts one job and returns its task.
func acceptOne(t testing.TB, s *Store, j job.Job) ledger.Task {
	t.Helper()
	out, tasks := accept(t, s, ledger.Intake{Job: j})
	if out[0].Verdict != ledger.Accepted || len(tasks) != 1 || tasks[0].ID != out[0].ID {
		t.Fatalf("accepted %+v, dispatched %+v", out, tasks)
	}
	return tasks[0]
}

func claim(t testing.TB, s *Store, task ledger.Task) *ledger.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), task.ID, task.N, lease)
	if err != nil || c == nil {
		t.Fatalf("claim of %+v: %+v, %v", task, c, err)
	}
	return c
}

func refused(t testing.TB, s *Store, id uuid.UUID, n int, why string) {
	t.Helper()
	if c, err := s.Claim(t.Context(), id, n, lease); c != nil || err != nil {
		t.Errorf("claim was given (%v, %v) though %s", c, err, why)
	}
}

// toRun returns tasks without the ended ones.
func toRun(tasks []ledger.Task) []ledger.Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t ledger.Task) bool { return t.Ended })
}

func record(t testing.TB, s *Store, c *ledger.Claim, o ledger.Outcome) ledger.Recorded {
	t.Helper()
	r, err := s.Record(t.Context(), c, o)
	heraldtest.Must(t, err)
	return r
}

func read(t testing.TB, s *Store, id uuid.UUID) ledger.Delivery {
	t.Helper()
	d, err := s.Delivery(t.Context(), id)
	heraldtest.Must(t, err)
	return d
}

func exec(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.Conns.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value queries one value.
func value[T any](t testing.TB, s *Store, sql string, args ...any) T {
	t.Helper()
	rows, err := s.Conns.Query(t.Context(), sql, args...)
	heraldtest.Must(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// countDispatched returns the number of dispatched deliveries of one agent.
func countDispatched(t testing.TB, s *Store) int {
	t.Helper()
	return value[int](t, s, `SELECT coalesce(max(n), 0)::int FROM (SELECT count(*) AS n FROM herald.deliveries
		WHERE status IN ('queued', 'running') AND handed_at IS NOT NULL GROUP BY chain_id, identity_registry, agent_id) x`)
}

func totals(t testing.TB, s *Store, agent int) map[string]int {
	t.Helper()
	var m map[string]int
	raw := value[[]byte](t, s, `SELECT totals FROM herald.agents WHERE agent_id = $1`, agent)
	heraldtest.Must(t, json.Unmarshal(raw, &m))
	return m
}

var delivered = ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true}

// waiting returns an outcome that waits d with a task.
func waiting(d time.Duration) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: d, Task: true, Called: true, Stage: "call", Error: "it said 503"}
}
