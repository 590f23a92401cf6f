package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

func TestMain(m *testing.M) {
	if os.Getenv(stdioAgent) != "" {
		speakStdio()
		return
	}
	heraldtest.Main(m)
}

// world is a complete Herald of the test's own, without cmd and HTTP: a real Postgres, a real Redis, a chain and a
// gateway.
type world struct {
	t       testing.TB
	net     *devnet.Net
	chain   *chain.Client
	gateway *ipfstest.Gateway
	keys    *secret.Keyset

	dbURL, redisURL string
	store           *store.Store
	queue           *queue.Queue
	dispatcher      *dispatch.Dispatcher
	intake          *intake.Intake
	registry        *prometheus.Registry
	log             *heraldtest.Log

	mu     *sync.Mutex // serializes the transactions on the chain
	client *int        // the next account that gives feedback
}

// in returns the same world for a subtest.
func (w *world) in(t testing.TB) *world {
	c := *w
	c.t = t
	return &c
}

// run runs a subtest with the same world.
func (w *world) run(t *testing.T, name string, test func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) { test(t, w.in(t)) })
}

// runParallel is run for a parallel subtest.
func (w *world) runParallel(t *testing.T, name string, test func(t *testing.T, w *world)) {
	w.run(t, name, func(t *testing.T, w *world) { t.Parallel(); test(t, w) })
}

// newStore opens a store on a migrated database of the test's own.
func newStore(t testing.TB) (*store.Store, string) {
	t.Helper()
	url := heraldtest.Postgres(t, postgres.Migrate)
	return openStore(t, url), url
}

func openStore(t testing.TB, url string) *store.Store {
	t.Helper()
	st, err := store.Open(postgres.Config{URL: secret.New(url), MaxConns: 5})
	heraldtest.Must(t, err)
	t.Cleanup(st.Close)
	return st
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, log: &heraldtest.Log{}, registry: prometheus.NewRegistry(), gateway: ipfstest.New(), mu: &sync.Mutex{}, client: new(int)}
	w.store, w.dbURL = newStore(t)
	w.redisURL = heraldtest.Redis(t)
	w.net = devnettest.Start(t, devnet.Config{Accounts: 60})
	w.keys = must(secret.Create())
	var err error
	w.queue, err = queue.Open(queue.Config{URL: secret.New(w.redisURL), Logger: w.logger()})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = w.queue.Close() })
	nodes, err := node.New(node.Config{ChainID: w.net.ChainID(), URLs: []secret.Secret{secret.New(w.net.URL())}, Logger: w.logger()})
	heraldtest.Must(t, err)
	t.Cleanup(nodes.Close)
	w.chain = chain.New(chain.Config{Logs: eventlog.New(nodes, false), Registries: w.net.Deployment().Registries(),
		LogRange: erc8004.Depth{Blocks: 1000}})
	heraldtest.Must(t, w.store.ReportVerified(t.Context(), []uint64{w.net.ChainID()}))
	w.dispatcher = must(dispatch.New(w.queue, w.logger()))
	w.intake = must(intake.New(intake.Config{Ledger: w.store, Dispatcher: w.dispatcher, Sealer: w.keys, Limits: w.limits(), Logger: w.logger()}))
	return w
}

func (w *world) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (w *world) limits() job.Limits {
	return job.Limits{MaxTimeout: 5 * time.Second, Registries: func(id uint64) (erc8004.Registries, bool) {
		return w.net.Deployment().Registries(), id == w.net.ChainID()
	}}
}

// worker contains the parts of one worker process.
type worker struct {
	t        testing.TB
	executor *Executor
	runner   *Runner
	pool     *mcpcall.Pool
	efforts  *effort.Budgets // nil: the agents have no budgets
	chains   map[uint64]event.Chain
	mu       sync.Mutex
	steps    []Step
}

func (k *worker) seen(id uuid.UUID, name string) (n int, last Step) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.steps {
		if s.DeliveryID == id && s.Name == name {
			n, last = n+1, s
		}
	}
	return n, last
}

// chainsReader reads tokenURI for the resolver.
type chainsReader struct{ c *chain.Client }

func (r chainsReader) TokenURI(ctx context.Context, _ uint64, registry common.Address, id *big.Int) (string, error) {
	return r.c.TokenURI(ctx, registry, id)
}

// newResolver returns a fetcher and a resolver that uses it. now is nil or the resolver's clock.
func (w *world) newResolver(cfg ipfs.Config, now func() time.Time) (*ipfs.Fetcher, *resolver.Resolver) {
	cfg.Logger = w.logger()
	fetcher := must(ipfs.New(cfg))
	w.t.Cleanup(fetcher.Close)
	resolve := must(resolver.New(resolver.Config{Chain: chainsReader{w.chain}, Fetcher: fetcher, Now: now}))
	w.t.Cleanup(resolve.Close)
	return fetcher, resolve
}

func newPool(t testing.TB, cfg mcpcall.Config) *mcpcall.Pool {
	pool := must(mcpcall.NewPool(cfg))
	t.Cleanup(func() {
		heraldtest.Equal(t, "the error of Close", pool.Close(heraldtest.Within(t, 10*time.Second)), nil)
	})
	return pool
}

// admitBy adds limits to a worker.
func admitBy(t testing.TB, cfg admission.Config) func(*Config) {
	gates := must(admission.New(cfg))
	t.Cleanup(gates.Close)
	return func(c *Config) { c.Admission = gates }
}

// limitOrigins limits a worker's calls at each origin.
func limitOrigins(all, unbound admission.Limiter) func(*Config) {
	gates := must(admission.New(admission.Config{Origins: admission.Origins{Limiter: all, Unbound: unbound}}))
	return func(c *Config) { c.Admission = gates }
}

// newWorker returns a worker, after adapt has changed its configuration. It takes no tasks until serve is called.
func (w *world) newWorker(adapt ...func(*Config)) *worker {
	w.t.Helper()
	k := &worker{t: w.t, chains: map[uint64]event.Chain{w.net.ChainID(): w.chain}}
	guard := guardtest.Loopback(w.t, nil)
	gw := httptest.NewServer(w.gateway.Handler())
	w.t.Cleanup(gw.Close)
	fetcher, resolve := w.newResolver(ipfs.Config{Gateways: []string{gw.URL}, Guard: guard}, nil)
	k.pool = newPool(w.t, mcpcall.Config{Guard: guard, Logger: w.logger(), RelistAfter: time.Nanosecond})
	metrics := must(NewMetrics(prometheus.NewRegistry()))
	cfg := Config{Ledger: w.store, Chain: func(id uint64) (event.Chain, bool) { c, ok := k.chains[id]; return c, ok }, Resolver: resolve, Fetcher: fetcher,
		Caller: k.pool, Keys: w.keys, Dispatcher: w.dispatcher, Spool: w.queue.Outcomes(),
		Schedule:    must(outcome.NewSchedule([]time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond})),
		CallTimeout: 5 * time.Second, Lease: 20 * time.Second, LeaseMargin: 10 * time.Second, Metrics: metrics, Logger: w.logger(),
		Trace: func(s Step) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.steps = append(k.steps, s)
		}}
	for _, a := range adapt {
		a(&cfg)
	}
	k.executor = must(NewExecutor(cfg))
	k.runner = must(NewRunner(k.executor, w.intake, 16))
	return k
}

// deliver runs a task by hand and waits until its outcome is recorded, because Runner.Deliver returns earlier for a
// plain success. For a wait, a hold or an old task, it returns asynq's error as a note.
func (k *worker) deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error) {
	note, err = k.runner.Deliver(ctx, id, n)
	var wait *queue.WaitError
	switch {
	case errors.As(err, &wait):
		return "waiting " + wait.Text, nil
	case errors.Is(err, queue.ErrDropped):
		return "no attempt", nil
	case err != nil && strings.HasPrefix(err.Error(), "held "):
		return err.Error(), nil
	case err == nil && note == "":
		heraldtest.Await(k.t, "the record", func() bool {
			_, runs := k.runner.running.Load(id)
			return !runs
		})
	}
	return note, err
}

// mustDeliver is deliver for a task whose note begins with the given text, or has no note if it is empty.
func (k *worker) mustDeliver(id uuid.UUID, n int, want string) {
	k.t.Helper()
	if note, err := k.deliver(k.t.Context(), id, n); err != nil || !strings.HasPrefix(note, want) || want == "" && note != "" {
		k.t.Fatalf("task %s:%d: %q, %v; want %q", id, n, note, err, want)
	}
}

// goDeliver is deliver in another goroutine. The channel gets the note or the text of the error.
func (k *worker) goDeliver(id uuid.UUID, n int) <-chan string {
	ended, ctx := make(chan string, 1), context.WithoutCancel(k.t.Context())
	go func() {
		note, err := k.deliver(ctx, id, n)
		if err != nil {
			note = err.Error()
		}
		ended <- note
	}()
	return ended
}

// serve runs k's tasks until the test ends or the returned function is called.
func (w *world) serve(k *worker) (shutdown func()) {
	w.t.Helper()
	srv := must(queue.NewServer(w.queue, queue.ServerConfig{Handler: k.runner, Concurrency: k.runner.Tasks(), ShutdownTimeout: 20 * time.Second, PollInterval: 100 * time.Millisecond,
		Kinds: []string{string(job.KindNewFeedback), string(job.KindFeedbackRevoked), string(job.KindResponseAppended), string(job.KindValidationResponse), string(job.KindAgentUpdated)}}))
	heraldtest.Must(w.t, srv.Start())
	shutdown = sync.OnceFunc(func() {
		srv.Stop()
		k.runner.StopClaiming()
		srv.Shutdown()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		k.runner.Wait(ctx)
	})
	w.t.Cleanup(shutdown)
	return shutdown
}

// register registers an agent whose registration, a data: URI, contains doc.
func (w *world) register(doc any) *big.Int {
	w.t.Helper()
	uri := ""
	if doc != nil {
		uri = "data:application/json," + string(asJSON(doc))
	}
	return w.registerURI(uri)
}

func (w *world) registerURI(uri string) *big.Int {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	id, _, err := w.net.Register(heraldtest.Within(w.t, 20*time.Second), w.net.Account(0), uri)
	heraldtest.Must(w.t, err)
	return id
}

// at returns a registration with one MCP endpoint.
func at(url string) map[string]any {
	return map[string]any{"name": "agent", "services": []any{map[string]any{"name": "MCP", "endpoint": url, "version": "2025-11-25"}}}
}

// rate gives feedback from one of the accounts, and returns its event as an indexer's job that the test can change.
func (w *world) rate(f devnet.Feedback) (map[string]any, devnet.Account) {
	w.t.Helper()
	made, client := w.rateJob(f)
	made.Sanitized = nil // jobs that are enqueued do not contain it
	return asMap(w.t, made), client
}

// asMap returns a job in JSON that the test can change.
func asMap(t testing.TB, of job.Job) (j map[string]any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(asJSON(of)))
	dec.UseNumber()
	heraldtest.Must(t, dec.Decode(&j))
	return j
}

// rateJob is like rate, but returns the job as it is made from the event, including invalid bytes.
func (w *world) rateJob(f devnet.Feedback) (job.Job, devnet.Account) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	client := w.net.Account(2 + *w.client%50)
	*w.client++
	if f.Value == nil {
		f.Value, f.ValueDecimals = big.NewInt(9977), 2
	}
	_, receipt, err := w.net.GiveFeedback(heraldtest.Within(w.t, 20*time.Second), client, f)
	heraldtest.Must(w.t, err)
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == erc8004.NewFeedback {
			return must(eventlog.Job(e, w.net.ChainID(), w.net.Deployment(), 1770000000, job.Limits{})), client
		}
	}
	w.t.Fatal("no event was mined")
	return job.Job{}, client
}

// with returns the job with another action.
func with(j map[string]any, action map[string]any) map[string]any {
	out := maps.Clone(j)
	out["action"] = action
	return out
}

// own returns an action that names its endpoint.
func own(url string, headers map[string]any) map[string]any {
	return map[string]any{"resolveEndpoint": false, "endpoint": map[string]any{"transport": "http", "url": url, "headers": headers}}
}

// submit enqueues jobs and returns the answers.
func (w *world) submit(jobs ...map[string]any) []intake.Answer {
	w.t.Helper()
	return w.submitAs(command, jobs...)
}

// accept enqueues one job, which must be new.
func (w *world) accept(j map[string]any) uuid.UUID {
	w.t.Helper()
	a := w.submit(j)[0]
	if a.Verdict != ledger.Accepted {
		w.t.Fatalf("%+v", a)
	}
	return a.ID
}

func (w *world) row(id uuid.UUID) ledger.Delivery {
	w.t.Helper()
	d, err := w.store.Delivery(heraldtest.Within(w.t, 20*time.Second), id)
	heraldtest.Must(w.t, err)
	return d
}

// shows checks the status, the reason, the number of attempts and parts of the error of a delivery.
func (w *world) shows(id uuid.UUID, status outcome.Status, reason outcome.Reason, attempts int,
	says ...string) ledger.Delivery {
	w.t.Helper()
	d := w.row(id)
	w.checkRow(d, status, reason, attempts, says)
	return d
}

// ends is shows after the delivery has the status.
func (w *world) ends(id uuid.UUID, status outcome.Status, reason outcome.Reason, attempts int,
	says ...string) ledger.Delivery {
	w.t.Helper()
	d := w.until(id, status)
	w.checkRow(d, status, reason, attempts, says)
	return d
}

func (w *world) checkRow(d ledger.Delivery, status outcome.Status, reason outcome.Reason, attempts int, says []string) {
	w.t.Helper()
	lacks := func(text string) bool { return !strings.Contains(d.Error, text) }
	if d.Status != status || d.Reason != reason || d.Attempts != attempts || slices.ContainsFunc(says, lacks) {
		w.t.Errorf("%s %q after %d attempts: %s; want %s %q after %d: %q; %+v", d.Status, d.Reason, d.Attempts, d.Error,
			status, reason, attempts, says, d.History)
	}
}

// due ends the wait of a delivery.
func (w *world) due(id uuid.UUID) {
	w.t.Helper()
	w.exec(`UPDATE herald.work SET next_attempt_at = now() WHERE id = $1`, id)
}

// replay replays a delivery and dispatches it.
func (w *world) replay(id uuid.UUID, force bool) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 20*time.Second)
	moved, left, tasks, err := w.store.Replay(ctx, []uuid.UUID{id}, force)
	if err != nil || moved != 1 {
		w.t.Fatalf("%d replayed, left %v, %v", moved, left, err)
	}
	w.dispatcher.Dispatch(ctx, tasks)
}

// claim claims a task for a worker that makes no attempt.
func (w *world) claim(id uuid.UUID, n int) *ledger.Claim {
	w.t.Helper()
	c, err := w.store.Claim(w.t.Context(), id, n, time.Hour)
	if err != nil || c == nil {
		w.t.Fatal(c, err)
	}
	return c
}

// counted returns the counters of a family, or the numbers of observations, by the values of their labels.
func counted(t testing.TB, of prometheus.Gatherer, family string) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for _, f := range must(of.Gather()) {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if f.GetName() == family {
				counts[strings.Join(labels, " ")] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return counts
}

// until waits until a delivery has the wanted status.
func (w *world) until(id uuid.UUID, want outcome.Status) ledger.Delivery {
	w.t.Helper()
	var d ledger.Delivery
	heraldtest.AwaitState(w.t, func() bool {
		d = w.row(id)
		return d.Status == want || d.Status.Final()
	}, func() string { return fmt.Sprintf("delivery %s is %s %s: %s", id, d.Status, d.Reason, d.Error) })
	if d.Status != want {
		w.t.Fatalf("delivery is %s %s: %s; want %s", d.Status, d.Reason, d.Error, want)
	}
	return d
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}

// command is the source of the jobs that tests submit.
var command = ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}

// acceptJobs enqueues jobs without parsing them.
func (w *world) acceptJobs(jobs ...job.Job) []ledger.Acceptance {
	w.t.Helper()
	in := make([]ledger.Intake, len(jobs))
	for i, j := range jobs {
		in[i] = ledger.Intake{Job: j, Source: ledger.SourceToken("indexer", ledger.TrustOrdinary)}
	}
	ctx := heraldtest.Within(w.t, 20*time.Second)
	out, tasks, err := w.store.Accept(ctx, in)
	heraldtest.Must(w.t, err)
	w.dispatcher.Dispatch(ctx, tasks)
	return out
}
