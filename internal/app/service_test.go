package app

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/tracingtest"
	"github.com/google/uuid"
)

// chainEnv returns the settings for a chain whose node is at url.
func chainEnv(n *devnet.Net, url string) []string {
	d, id := n.Deployment(), n.ChainID()
	return []string{fmt.Sprintf("RPC_URL_%d=%s", id, url), fmt.Sprintf("IDENTITY_REGISTRY_%d=%s", id, d.Identity),
		fmt.Sprintf("REPUTATION_REGISTRY_%d=%s", id, d.Reputation)}
}

// feedback registers an agent whose registration names url as its endpoint, and the agent itself. It gives the agent
// one feedback and returns the job for it, as an indexer enqueues it.
func feedback(t testing.TB, n *devnet.Net, url string) []byte {
	t.Helper()
	ctx := heraldtest.Within(t, 20*time.Second)
	id, _, err := n.Register(ctx, n.Account(0), "")
	heraldtest.Must(t, err)
	doc, _ := json.Marshal(map[string]any{"services": []any{map[string]any{"name": "MCP", "endpoint": url, "version": "2025-11-25"}},
		"registrations": []any{map[string]any{"agentId": id, "agentRegistry": fmt.Sprintf("eip155:%d:%s", n.ChainID(), n.Deployment().Identity)}}})
	_, err = n.SetURI(ctx, n.Account(0), id, "data:application/json,"+string(doc))
	heraldtest.Must(t, err)
	return rate(t, n, id)
}

// rate makes a client give an agent feedback, and returns the job.
func rate(t testing.TB, n *devnet.Net, id *big.Int) []byte {
	t.Helper()
	feedback := devnet.Feedback{AgentID: id, Value: big.NewInt(1)}
	_, receipt, err := n.GiveFeedback(heraldtest.Within(t, 20*time.Second), n.Account(1), feedback)
	heraldtest.Must(t, err)
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == erc8004.NewFeedback {
			j, err := eventlog.Job(e, n.ChainID(), n.Deployment(), 0, job.Limits{})
			heraldtest.Must(t, err)
			line, _ := json.Marshal(j)
			return line
		}
	}
	t.Fatal("no event was mined")
	return nil
}

// agentOf returns the agent of a job.
func agentOf(t testing.TB, line []byte) *big.Int {
	t.Helper()
	j, err := job.Parse(line, job.Limits{})
	heraldtest.Must(t, err)
	return j.AgentID
}

func accept(t testing.TB, w *Worker, line []byte) uuid.UUID {
	t.Helper()
	source := ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}
	got, err := w.Intake.Submit(heraldtest.Within(t, 20*time.Second), [][]byte{line}, source)
	if err != nil || got[0].Verdict != ledger.Accepted {
		t.Fatalf("%+v, %v", got, err)
	}
	return got[0].ID
}

// until waits until a delivery is as the test wants it.
func until(t testing.TB, st *store.Store, id uuid.UUID, is func(ledger.Delivery) bool) (d ledger.Delivery) {
	t.Helper()
	ctx := heraldtest.Within(t, time.Minute)
	heraldtest.AwaitState(t, func() bool {
		var err error
		d, err = st.Delivery(ctx, id)
		return err == nil && is(d)
	}, func() string { return fmt.Sprintf("the delivery is %s %s: %s", d.Status, d.Reason, d.Error) })
	return d
}

func delivered(t testing.TB, st *store.Store, id uuid.UUID) ledger.Delivery {
	t.Helper()
	d := until(t, st, id, func(d ledger.Delivery) bool { return d.Status.Final() })
	if d.Status != outcome.Delivered {
		t.Fatalf("%s %s: %s", d.Status, d.Reason, d.Error)
	}
	return d
}

// TestWaitsForMissingServices checks a start without Postgres and Redis. The worker waits, /readyz names each missing
// service, and the worker starts when they are available. /readyz also names a chain that is unavailable, but the
// worker does not wait for it. A stop during the wait is orderly. Neither /readyz nor the log shows a password.
func TestWaitsForMissingServices(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	pg, dbURL := heraldtest.PostgresGate(t, heraldtest.Postgres(t, postgres.Migrate))
	redis, redisURL := heraldtest.RedisGate(t, heraldtest.Redis(t))
	node := heraldtest.NewGate(t, strings.TrimPrefix(net.URL(), "http://"))
	env := append(chainEnv(net, "http://"+node.Address), "DATABASE_URL="+strings.Replace(dbURL, "@", ":hunter2@", 1), "REDIS_URL="+redisURL, "HERALD_KEYSET="+heraldtest.Keyset(t))
	stopped := run(t, false, env...)
	for _, why := range stopped.untilWaitingFor("postgres", "redis") {
		heraldtest.Lacks(t, "/readyz", why, "hunter2")
	}
	heraldtest.Must(t, stopped.stop())

	r := run(t, false, env...)
	name := fmt.Sprintf("chain %d", net.ChainID())
	heraldtest.Equal(t, "the wait for a chain", r.untilWaitingFor("postgres", "redis")[name], "")
	redis.Open()
	r.untilReadyz(func(_ int, waiting, degraded map[string]string) bool {
		return waiting["redis"] == "" && degraded[name] != ""
	})
	node.Open()
	r.untilReadyz(func(_ int, _, degraded map[string]string) bool { return degraded[name] == "" })
	r.untilWaitingFor("postgres", "start")
	select {
	case <-r.worker:
		t.Fatal("it takes tasks without Postgres")
	default:
	}
	pg.Open()
	w := r.up()
	r.untilReadyWithout()

	a := openAgent(t)
	delivered(t, w.Store, accept(t, w, feedback(t, net, a.URL)))
	metrics := r.get("", "/metrics")
	heraldtest.Contains(t, "/metrics", metrics, `mcp_calls_total{status="success",tool_name="agent.receiveFeedback"} 1`, `herald_deliveries_open{status="queued"} 0`,
		`herald_deliveries_total{kind="NewFeedback",reason="",status="delivered"} 1`, "herald_overdue_seconds 0", "herald_delivery_latency_seconds_count 1",
		`herald_queue_tasks{lane="first",state="completed"} 1`, `herald_postgres_connections{state="max"}`,
		`herald_commit_groups_failed_total{statement="record"} 0`)
	page := r.get("", "/monitor/api/queues/first/completed_tasks")
	heraldtest.Contains(t, "the web UI", page, `"completed":1`, `"result":""`)

	// Redis fails again while the worker runs: /readyz reports it, and the worker continues.
	redis.Close()
	r.untilWaitingFor("redis")
	redis.Open()
	r.untilReadyWithout()
	heraldtest.Must(t, r.stop())
	heraldtest.Lacks(t, "the log", stopped.log.String()+r.log.String(), "HERALD_KEYSET", "password", "hunter2")
}

// TestServicesThatTakeNoWrites checks that /readyz names Postgres or Redis while it answers but takes no writes, and that
// the worker is ready again afterwards.
func TestServicesThatTakeNoWrites(t *testing.T) {
	t.Parallel()
	dbURL, redisURL := heraldtest.Postgres(t, postgres.Migrate), heraldtest.RealRedis(t)
	r := run(t, false, "DATABASE_URL="+dbURL, "REDIS_URL="+redisURL, "HERALD_KEYSET="+heraldtest.Keyset(t))
	r.up()
	r.untilReadyWithout()
	db := heraldtest.Connect(t, dbURL)
	redis := heraldtest.RedisClient(t, redisURL)
	setReadOnly := func(value string) {
		for _, sql := range []string{"ALTER DATABASE " + db.Config().Database + " SET default_transaction_read_only = " + value,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"} {
			_, err := db.Exec(t.Context(), sql)
			heraldtest.Must(t, err)
		}
	}
	setReadOnly("on")
	r.untilReadyz(func(_ int, waiting, _ map[string]string) bool {
		return strings.Contains(waiting["postgres"], "read-only")
	})
	heraldtest.Contains(t, "the overview", r.get("", "/"), "postgres cannot be used: ")
	setReadOnly("off")
	r.untilReadyWithout()

	heraldtest.Must(t, redis.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	r.untilReadyz(func(_ int, waiting, _ map[string]string) bool {
		return strings.Contains(waiting["redis"], "takes no writes")
	})
	heraldtest.Must(t, redis.ReplicaOf(t.Context(), "NO", "ONE").Err())
	r.untilReadyWithout()
	heraldtest.Must(t, r.stop())
}

// TestStopDuringACall checks that the call in flight finishes during a stop, that the delivery is recorded as delivered
// and not repeated, and that the data is still there at the next start.
func TestStopDuringACall(t *testing.T) {
	t.Parallel()
	heraldtest.EmptyPostgres(t) // skips the test without installed programs, because the service would download them
	net := devnettest.Start(t, devnet.Config{})
	a := newAgent(t)
	data := dataFolder(t)
	env := append(chainEnv(net, net.URL()), "HERALD_DATA="+data)
	r := run(t, false, env...)
	w := r.up()

	// Another command finds the running worker.
	cfg := load(t, env...)
	b, err := backend.Attach(t.Context(), cfg, 60*time.Second, slog.New(slog.DiscardHandler))
	if err != nil || b.DatabaseURL.IsZero() || b.RedisURL.IsZero() {
		t.Fatalf("%+v, %v", b, err)
	}

	id := accept(t, w, feedback(t, net, a.URL))
	heraldtest.Receive(t, "the call", a.begun)
	r.cancel()
	r.untilWaitingFor("stop")
	close(a.hold)
	if err := r.wait(); err != nil {
		t.Fatalf("%v\n%s", err, r.log)
	}
	heraldtest.Equal(t, "calls", a.count(), 1)
	var recorded []string
	for _, s := range r.steps {
		if s.Name == "record" {
			recorded = append(recorded, s.Detail)
		}
	}
	heraldtest.Equal(t, "recorded outcomes", recorded, []string{"delivered"})
	_, err = embedded.ReadRunFile(data)
	heraldtest.Fails(t, "reading run.json", err, fs.ErrNotExist)

	// Without a worker, a command starts only Postgres, and waits for it for at most its timeout.
	// A process that a parallel test has just forked shares the lock of the data folder until it runs its program.
	heraldtest.Await(t, "the lock to be free", func() bool {
		b, err = backend.Attach(t.Context(), cfg, time.Millisecond, slog.New(slog.DiscardHandler))
		return err == nil || !strings.Contains(err.Error(), "is held by")
	})
	heraldtest.Fails(t, "Attach", err, "did not start in time", "--timeout")
	b, err = backend.Attach(t.Context(), cfg, time.Minute, slog.New(slog.DiscardHandler))
	heraldtest.Must(t, err)
	defer func() { heraldtest.Must(t, b.Close(heraldtest.Within(t, 30*time.Second))) }()
	st, err := backend.OpenStore(t.Context(), cfg, b, 60*time.Second, false, slog.New(slog.DiscardHandler))
	heraldtest.Must(t, err)
	defer st.Close()
	if d := delivered(t, st, id); d.Attempts != 1 || len(d.History) != 1 {
		t.Errorf("%+v", d)
	}
	heraldtest.Equal(t, "no Redis was started for a command", b.RedisURL.IsZero(), true)
}

// TestEphemeral checks that --ephemeral leaves no data behind.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	heraldtest.EmptyPostgres(t)
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	data := dataFolder(t)
	r := run(t, true, append(chainEnv(net, net.URL()), "HERALD_DATA="+data)...)
	w := r.up()
	delivered(t, w.Store, accept(t, w, feedback(t, net, a.URL)))
	heraldtest.Must(t, r.stop())
	left, err := filepath.Glob(filepath.Join(data, "*"))
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "files in the data folder", left, nil)
}

// TestRefusesToStart checks that a worker does not wait where waiting does not help. The error names the remedy.
func TestRefusesToStart(t *testing.T) {
	t.Parallel()
	evicting := heraldtest.RealRedis(t)
	heraldtest.Must(t, heraldtest.RedisClient(t, evicting).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	unreleased := heraldtest.EmptyPostgres(t)
	heraldtest.Exec(t, unreleased, `CREATE SCHEMA herald; CREATE TABLE herald.goose_db_version (version_id bigint)`)
	for want, settings := range map[string]string{
		"run `worker migrate`":                                                       "DATABASE_URL=" + heraldtest.EmptyPostgres(t),
		"its schema is of a Herald before v0.1.0":                                    "DATABASE_URL=" + unreleased,
		"set maxmemory-policy noeviction":                                            "REDIS_URL=" + evicting,
		"HERALD_WATCH: no registry of chain 600 is known: set IDENTITY_REGISTRY_600": "RPC_URL_600=http://127.0.0.1:1 HERALD_WATCH=600",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			heraldtest.Fails(t, "the start", run(t, false, servicesEnv(t, strings.Fields(settings)...)...).wait(), want)
		})
	}
	g := heraldtest.NewGate(t, "127.0.0.1:1")
	g.Open()
	err := Run(t.Context(), load(t, "HERALD_LISTEN="+g.Address), Options{Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Fails(t, "the start at an address that is taken", err, "HERALD_LISTEN")
}

// TestTraces checks that a worker exports the traces of its deliveries to the collector, the last ones when it stops.
func TestTraces(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	var keyed atomic.Bool
	collector := tracingtest.New(t, func(c *tracingtest.Collector) {
		c.Refuse = func(r *http.Request) int {
			keyed.Store(r.Header.Get("X-Api-Key") == "very-secret key")
			return 0
		}
	})
	r := run(t, false, workerEnv(t, net, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL,
		"OTEL_EXPORTER_OTLP_HEADERS=x-api-key=very-secret%20key")...)
	w := r.up()
	a := openAgent(t)
	d := delivered(t, w.Store, accept(t, w, feedback(t, net, a.URL)))
	heraldtest.Must(t, r.stop())
	names := map[string]int{}
	for _, s := range collector.Spans() {
		if s.TraceID == d.TraceID && s.Resource["service.name"] == "herald" {
			names[s.Name]++
		}
	}
	heraldtest.Equal(t, "the spans", names, map[string]int{"accept": 1, "attempt": 1, "claim": 1, "check": 1, "resolve": 1, "fetch": 1, "connect": 1, "compose": 1, "call": 1, "record": 1})
	if !keyed.Load() || strings.Contains(r.log.String(), "very-secret") {
		t.Errorf("the header was sent: %t; the log says %s", keyed.Load(), r.log)
	}
}

// TestBindingPolicy checks the effect of HERALD_BINDING on two agents whose registrations name the same endpoint
// without the endpoint's confirmation, while a call to the first one is in flight.
func TestBindingPolicy(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	for _, c := range []struct {
		env    []string
		first  bool // the first agent is called
		status outcome.Status
		reason outcome.Reason
	}{
		{nil, true, outcome.Waiting, "agent_busy"},
		{[]string{"HERALD_BINDING=off"}, true, outcome.Running, ""},
		{[]string{"HERALD_BINDING=require"}, false, outcome.Rejected, "endpoint_unverified"},
	} {
		a := newAgent(t)
		answer := sync.OnceFunc(func() { close(a.hold) })
		t.Cleanup(answer)
		r := run(t, false, workerEnv(t, net, c.env...)...)
		w := r.up()
		accept(t, w, feedback(t, net, a.URL))
		if c.first {
			heraldtest.Receive(t, "the call", a.begun)
		}
		second := accept(t, w, feedback(t, net, a.URL))
		t.Log(c.env)
		d := until(t, w.Store, second, func(d ledger.Delivery) bool {
			return d.Status == c.status && d.Reason == c.reason && (c.status != outcome.Running || len(a.begun) > 0)
		})
		if c.status == outcome.Rejected && !strings.Contains(d.Error, a.URL+"/.well-known/agent-registration.json") {
			t.Errorf("its author is told %q", d.Error)
		}
		answer()
		if c.status == outcome.Waiting {
			delivered(t, w.Store, second)
		}
		if err := r.stop(); err != nil {
			t.Errorf("%v: %v", c.env, err)
		}
	}
}
