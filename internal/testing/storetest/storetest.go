// Package storetest is the conformance suite of stores of deliveries: Run runs it.
//
// It runs on the Postgres store and on its model, internal/store/model. Tests that need thousands of databases, or a
// clock of their own, use the model. Their results hold for Postgres because both stores pass this suite. The tests of
// internal/store cover locks, plans, cost, and bytes that Postgres cannot store, and those of internal/store/records
// what only Postgres records: the agents' servers and calls.
package storetest

import (
	"context"
	"errors"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store has the methods that the delivery core and the operators' commands use.
type Store interface {
	Accept(ctx context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error)

	Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error)
	Extend(ctx context.Context, c *ledger.Claim, d time.Duration) error
	Record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error)
	Adopt(ctx context.Context, c *ledger.Claim, p ledger.SpooledOutcome) (ledger.Recorded, error)
	Hints(ctx context.Context, c *ledger.Claim) ([]ledger.Hint, error)
	Bind(ctx context.Context, c *ledger.Claim, b ledger.Binding) error
	ReportVerified(ctx context.Context, chains []uint64) error
	ClaimMembers(ctx context.Context, leader *ledger.Claim, n int, lease time.Duration) ([]ledger.Member, error)
	GiveBack(ctx context.Context, all []ledger.Member) error

	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	Clock(ctx context.Context) (now, started time.Time, err error)
	ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error)
	Expire(ctx context.Context, age time.Duration, limit int) (int, error)
	Release(ctx context.Context, chains []uint64, gateway bool, limit int) (ended []ledger.Task, err error)
	Due(ctx context.Context, limit int) (tasks []ledger.Task, more bool, err error)
	Backlog(ctx context.Context, limit int) ([]ledger.Task, error)
	Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]ledger.Task, error)
	Redispatch(ctx context.Context, t ledger.Task) (ledger.Task, bool, error)
	LostBefore(ctx context.Context, before time.Time, limit int) ([]ledger.Task, error)

	Replay(ctx context.Context, ids []uuid.UUID, force bool) (moved int, left map[uuid.UUID]string, tasks []ledger.Task, err error)
	Cancel(ctx context.Context, ids []uuid.UUID, force bool) (moved int, left map[uuid.UUID]string, ended []ledger.Task, err error)
	EnableAgent(ctx context.Context, a erc8004.Agent, enabled bool) (released int, tasks []ledger.Task, err error)
	ReleaseEnabled(ctx context.Context, except func(erc8004.Agent) bool) (released int, tasks []ledger.Task, err error)
	SetPolicy(ctx context.Context, a erc8004.Agent, p policy.Policy) error
	ReplacePolicy(ctx context.Context, a erc8004.Agent, level policy.Level, p policy.Policy) error
	AgentRow(ctx context.Context, a erc8004.Agent) (records.AgentRow, error)

	Delivery(ctx context.Context, id uuid.UUID) (ledger.Delivery, error)
	DeliveryByKey(ctx context.Context, key string) (ledger.Delivery, error)

	IgnoreOrder(ctx context.Context, limit int) ([]ledger.Task, error)
	UseOrder(order func() string)
}

// Postgres joins the ledger and the operator's records of one database for the suite, because the rules of agents
// concern both.
type Postgres struct {
	*deliveries
	*records.Store
}

type deliveries = store.Store

// JoinRecords returns the ledger s together with the records of its database.
func JoinRecords(s *store.Store) Postgres { return Postgres{s, records.New(s)} }

// SetClockAhead sets the clock of a test's own Postgres database 100 days ahead, for new transactions.
func SetClockAhead(t testing.TB, conns *pgxpool.Pool) {
	t.Helper()
	_, err := conns.Exec(t.Context(), `CREATE SCHEMA fast;
		CREATE FUNCTION fast.now() RETURNS timestamptz STABLE LANGUAGE sql AS $$ SELECT pg_catalog.now() + interval '100 days' $$;
		CREATE FUNCTION fast.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '100 days' $$;
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = fast, pg_catalog', current_database()); END $$`)
	heraldtest.Must(t, err)
	conns.Reset() // new connections have this clock
}

// Open opens a store in a database, and closes it when the test ends. conns is its limit of connections, 0 the default.
func Open(t testing.TB, url string, conns int32) *store.Store {
	t.Helper()
	s, err := store.Open(postgres.Config{URL: secret.New(url), MaxConns: conns})
	heraldtest.Must(t, err)
	t.Cleanup(s.Close)
	return s
}

// Clock is the clock of a store. Advance moves it forward. For a store with a clock of its own, Advance makes all its
// rows older.
type Clock interface {
	Advance(d time.Duration)
}

const (
	lease    = 2 * time.Minute
	attempts = 3 // attempts of a budget
)

// Run runs the suite. open returns an empty store for each test; the tests run in parallel.
func Run(t *testing.T, open func(t *testing.T) (Store, Clock)) {
	runEach(t, open, "Test")
}

// runEach runs the scenarios: the suite's methods whose names have the prefix.
func runEach(t *testing.T, open func(t *testing.T) (Store, Clock), prefix string) {
	for m := range reflect.TypeFor[*suite]().Methods() {
		name, isScenario := strings.CutPrefix(m.Name, prefix)
		if !isScenario {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := open(t)
			m.Func.Interface().(func(*suite))(&suite{T: t, Store: s, Clock: c})
		})
	}
}

// suite is the store and the clock of one test.
type suite struct {
	*testing.T
	Store
	Clock
}

// Feedback returns the NewFeedback with the given index, from one client to an agent.
func Feedback(agent, index int) job.Job {
	return job.Job{Kind: job.KindNewFeedback, ChainID: 8453,
		ReputationRegistry: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"),
		IdentityRegistry:   common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"),
		AgentID:            big.NewInt(int64(agent)), ClientAddress: common.HexToAddress("0xc1"), FeedbackIndex: uint64(index),
		Value: big.NewInt(9977), ValueDecimals: 2, Tag1: "uptime", BlockNumber: 1000,
		Action: job.Action{ToolName: "agent.receiveFeedback", ResolveEndpoint: true, IncludeFileContent: true}}
}

// Agent returns the identity of the agent that Feedback(agent, …) is about.
func Agent(agent int) erc8004.Agent { return (&ledger.Claim{Job: Feedback(agent, 1)}).Agent() }

// accept accepts jobs and returns the answers and the dispatched tasks.
func (s *suite) accept(in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task) {
	s.Helper()
	out, tasks, err := s.Accept(s.Context(), in)
	s.must(err)
	return out, tasks
}

// take accepts n feedbacks of an agent and returns the dispatched tasks.
func (s *suite) take(agent, n int) []ledger.Task {
	s.Helper()
	return s.takeRange(agent, 1, n, false)
}

// takeRange accepts the feedbacks of an agent whose indexes are in [from, to], and returns the dispatched tasks.
func (s *suite) takeRange(agent, from, to int, bulk bool) []ledger.Task {
	s.Helper()
	in := make([]ledger.Intake, 0, to-from+1)
	for index := from; index <= to; index++ {
		in = append(in, ledger.Intake{Job: Feedback(agent, index), Bulk: bulk})
	}
	out, tasks := s.accept(in)
	for _, a := range out {
		s.require(a.Verdict == ledger.Accepted, "%+v", a)
	}
	return tasks
}

func (s *suite) takeOne(agent int) ledger.Task {
	s.Helper()
	tasks := s.take(agent, 1)
	s.require(len(tasks) == 1, "handed out %v", tasks)
	return tasks[0]
}

func (s *suite) claim(t ledger.Task) *ledger.Claim {
	s.Helper()
	c, err := s.Claim(s.Context(), t.ID, t.N, lease)
	s.must(err)
	if c == nil {
		d := s.read(t.ID)
		s.Fatalf("the claim for %s:%d is refused; it is %s %s, task %d", t.ID, t.N, d.Status, d.Reason, d.Dispatch)
	}
	return c
}

// claimNew accepts the feedback of agent 1 with this index, and claims it.
func (s *suite) claimNew(index int) *ledger.Claim {
	s.Helper()
	return s.claim(s.takeRange(1, index, index, false)[0])
}

func (s *suite) refused(id uuid.UUID, n int, why string) {
	s.Helper()
	c, err := s.Claim(s.Context(), id, n, lease)
	s.expect(c == nil && err == nil, "a claim was given (%+v, %v) though %s", c, err, why)
}

// toRun returns the tasks that are not marked Ended. It fails the test if the number of the others exceeds ended.
func (s *suite) toRun(tasks []ledger.Task, ended int) []ledger.Task {
	s.Helper()
	run := slices.DeleteFunc(slices.Clone(tasks), func(t ledger.Task) bool { return t.Ended })
	s.expect(len(tasks)-len(run) <= ended, "%d tasks ended, of %d deliveries: %+v", len(tasks)-len(run), ended, tasks)
	return run
}

// early checks that a claim is refused because the delivery is not due.
func (s *suite) early(id uuid.UUID, n int) {
	s.Helper()
	var early *ledger.EarlyError
	d := s.read(id)
	c, err := s.Claim(s.Context(), id, n, lease)
	s.expect(c == nil && errors.As(err, &early) && early.Left > 0 && early.Reason == d.Reason && early.Text == d.Error,
		"a claim of %+v: %+v, %v", d, c, err)
}

func (s *suite) record(c *ledger.Claim, o ledger.Outcome) ledger.Recorded {
	s.Helper()
	r, err := s.Record(s.Context(), c, o)
	s.must(err)
	return r
}

func (s *suite) fenced(c *ledger.Claim, o ledger.Outcome) {
	s.Helper()
	r, err := s.Record(s.Context(), c, o)
	s.expect(errors.Is(err, ledger.ErrFenced) && r.Task == nil && len(r.Next) <= 0, "%s under a lost claim: %+v, %v",
		o.Status, r, err)
}

func (s *suite) read(id uuid.UUID) ledger.Delivery {
	s.Helper()
	d, err := s.Delivery(s.Context(), id)
	s.must(err)
	return d
}

// is checks a delivery's status, reason, number of attempts and number of attempt rows.
func (s *suite) is(id uuid.UUID, status outcome.Status, why outcome.Reason, attempts, rows int) ledger.Delivery {
	s.Helper()
	d := s.read(id)
	s.expect(d.Status == status && d.Reason == why && d.Attempts == attempts && len(d.History) == rows,
		"the row is %s %q with %d attempts in %d rows, want %s %q %d %d", d.Status, d.Reason, d.Attempts,
		len(d.History), status, why, attempts, rows)
	if d.Status.Final() != (d.FinishedAt != nil) || (d.Status == outcome.Waiting) != (d.NextAttemptAt != nil) && d.Reason != outcome.BehindEarlier {
		s.Errorf("%s, finished %v, next attempt %v", d.Status, d.FinishedAt, d.NextAttemptAt)
	}
	return d
}

// outcomes checks the outcomes of a delivery's attempts, "" for one without an outcome.
func (s *suite) outcomes(id uuid.UUID, want ...string) {
	s.Helper()
	var got []string
	for _, a := range s.read(id).History {
		got = append(got, a.Outcome)
	}
	s.expect(slices.Equal(got, want), "attempts led to %q, want %q", got, want)
}

// expireLeases checks how many leases ExpireLeases ends, and of how many deliveries that are then dead.
func (s *suite) expireLeases(limit, want, wantDead int) {
	s.Helper()
	n, dead, err := s.ExpireLeases(s.Context(), limit, attempts)
	s.must(err)
	s.require(n == want && dead == wantDead, "%d leases ran out, of %d that are dead", n, dead)
}

// lose lets a claim's lease expire and calls ExpireLeases.
func (s *suite) lose(c *ledger.Claim) {
	s.Helper()
	s.Advance(lease + time.Second)
	s.expireLeases(100, 1, map[bool]int{true: 1}[c.Budget >= attempts])
}

// dispatchBacklog dispatches the next deliveries of the backlogs.
func (s *suite) dispatchBacklog() []ledger.Task {
	s.Helper()
	return s.tasks(s.Backlog(s.Context(), 100))
}

// dispatchDue dispatches the deliveries whose waits are over.
func (s *suite) dispatchDue() []ledger.Task {
	s.Helper()
	tasks, _, err := s.Due(s.Context(), 100)
	s.must(err)
	return tasks
}

// nextTask returns the one task that Backlog dispatches.
func (s *suite) nextTask() ledger.Task {
	s.Helper()
	tasks := s.dispatchBacklog()
	s.require(len(tasks) == 1, "handed out %+v", tasks)
	return tasks[0]
}

// handed counts the dispatched deliveries that are queued: neither claimed nor waiting.
func (s *suite) handed() (n int) {
	s.Helper()
	s.Advance(time.Millisecond)
	tasks := s.tasks(s.Overdue(s.Context(), 0, uuid.Nil, 1000))
	for _, t := range tasks {
		if s.read(t.ID).Status == outcome.Queued {
			n++
		}
	}
	return n
}

// expect reports a failure with the text if ok is false.
func (s *suite) expect(ok bool, format string, args ...any) {
	s.Helper()
	if !ok {
		s.Errorf(format, args...)
	}
}

// require ends the test with the text if ok is false.
func (s *suite) require(ok bool, format string, args ...any) {
	s.Helper()
	if !ok {
		s.Fatalf(format, args...)
	}
}

// tasks returns the tasks, or ends the test if err is not nil.
func (s *suite) tasks(tasks []ledger.Task, err error) []ledger.Task {
	s.Helper()
	s.must(err)
	return tasks
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

var delivered = ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true}

// failed is the outcome of a call that failed: the delivery waits d with its task.
func failed(d time.Duration) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: d, Task: true, Called: true, Stage: "call", Error: "it said 503"}
}

// notYet is a free outcome without a call: the delivery waits for d and keeps its task.
func notYet(d time.Duration) ledger.Outcome {
	return ledger.Outcome{Status: outcome.Waiting, Reason: "not_confirmed", Delay: d, Task: true, Free: true, Stage: "check"}
}
