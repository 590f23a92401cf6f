package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/tracing"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/legacy"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/alerts"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/queue/webui"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// assembly holds the parts of a worker, wired together. openParts sets the fields below backend.
type assembly struct {
	cfg     *config.Config
	options Options
	log     *slog.Logger // from openServices on, it also tracks outages of Postgres and Redis
	metrics *prometheus.Registry
	ready   *readiness
	server  *server.Server
	backend *backend.Backend

	services []service // in the order of starting
	closers  []func()  // in the order of opening
	outages  []*logging.Outage

	store       *store.Store
	records     *records.Store // of the same connections
	upkeep      *store.Store   // connections for maintenance alone, so that deliveries cannot use them up
	queue       *queue.Queue
	dispatcher  *dispatch.Dispatcher
	keys        *secret.Keyset
	content     *Content
	tracer      trace.Tracer  // nil if traces are off
	signing     *signing.Ring // nil without HERALD_PUBLIC_URL
	pool        *mcpcall.Pool
	serversFile *serversFile
	policyFile  *backend.PolicyFile
	fast        queue.Redis // for rate limits; nil with an embedded Redis
	limits      *ratelimit.Limiter
	unbound     *ratelimit.Limiter // of agents without a verified endpoint; nil with HERALD_BINDING=off
	efforts     *effort.Budgets    // nil with HERALD_EFFORT_BUDGET=off
	schedule    outcome.Schedule
	callMetrics *delivery.Metrics
	tokens      *auth.Authorizer
	executor    *delivery.Executor
	intake      *intake.Intake
	runner      *delivery.Runner
	throughput  *throughput.Counter
	releaser    *maintenance.Releaser
	followers   *chainFollowers

	monitor  http.Handler
	routes   []server.Route
	webStore *store.Store                      // connections for the API and the pages
	operator atomic.Pointer[operator.Operator] // requests may come before it is set
}

// openParts opens the worker's modules in order. Each function sets its parts, adds their services, which start in this
// order and stop in reverse order, and adds the functions that close the parts. Followers of chains stop first, so that
// another worker follows the chains while this worker's deliveries finish; then the task server, which waits for its
// running tasks; then the rest.
func (a *assembly) openParts() error {
	for _, open := range []func() error{a.openServices, a.openTraces, a.openContent, a.openKeys, a.openSigning,
		a.openPool, a.openFiles, a.openLimiters, a.openEfforts, a.openDelivery, a.openMaintenance, a.openAlerts,
		a.openWeb, a.openTasks, a.openLegacy, a.openFollowers} {
		if err := open(); err != nil {
			return err
		}
	}
	return a.metrics.Register(&gauges{store: a.store, records: a.records, queue: a.queue, limits: a.limitStats,
		log: a.log})
}

func (a *assembly) addServices(more ...service) { a.services = append(a.services, more...) }
func (a *assembly) onClose(do func())           { a.closers = append(a.closers, do) }

// closeParts closes the opened parts, the last one first.
func (a *assembly) closeParts() {
	for _, do := range slices.Backward(a.closers) {
		do()
	}
}

// openServices opens the connections to Postgres and Redis, which are reached later (newConnections).
func (a *assembly) openServices() (err error) {
	a.store, err = a.openStore(postgres.Config{URL: a.backend.DatabaseURL, LeaderURL: a.backend.LeaderURL,
		MaxConns: int32(a.cfg.DBPool)})
	if err != nil {
		return err
	}
	a.records = records.New(a.store)
	a.watchServices()
	a.queue, err = queue.Open(queue.Config{URL: a.backend.RedisURL, NoIntake: a.cfg.RefusesRedisJobs(), Logger: a.log})
	if err != nil {
		return err
	}
	a.onClose(func() { _ = a.queue.Close() })
	ui := webui.New(a.queue, server.MonitorRoot, intake.MaskJob)
	a.onClose(func() { _ = ui.Close() })
	a.monitor = ui
	if a.dispatcher, err = dispatch.New(a.queue, a.log); err != nil {
		return err
	}
	return a.metrics.Register(&surroundings{ready: a.ready, dataDir: a.backend.DataDir, log: a.log})
}

// openStore opens connections to Postgres of their own.
func (a *assembly) openStore(c postgres.Config) (*store.Store, error) {
	st, err := store.Open(c)
	if err == nil {
		st.StrictOrder = a.cfg.StrictOrder
		a.onClose(st.Close)
	}
	return st, err
}

// openTraces prepares the sending of spans to a collector, if one is configured. Its service stops last and sends the
// last spans.
func (a *assembly) openTraces() error {
	t := a.cfg.Traces
	if !t.On() {
		return nil
	}
	spans, err := tracing.Open(tracing.Config{Endpoint: t.Endpoint(), Headers: t.Headers(), Service: t.Service,
		Version: buildinfo.Version(), Logger: a.log})
	if err != nil {
		return err
	}
	a.tracer = spans.Tracer()
	a.onClose(spans.Close) // if the services were not started
	a.addServices(service{name: "traces", stop: spans.Close, start: func(context.Context) error {
		a.log.Info("deliveries are traced", "collector", spans.Collector())
		return nil
	}})
	return nil
}

// openContent opens the clients of chains and IPFS. No service waits for chains: a delivery that needs a chain fails
// and waits by itself.
func (a *assembly) openContent() (err error) {
	a.content, err = OpenContent(a.cfg, Options{Logger: a.log, ChainTimeout: a.options.ChainTimeout})
	if err != nil {
		return err
	}
	a.onClose(a.content.Close)
	var chains []dependency
	for id, c := range a.content.chains {
		chains = append(chains, dependency{fmt.Sprintf("chain %d", id), c.Ping})
	}
	a.addServices(newLoop("chain health", func(ctx context.Context) { a.watchChains(ctx, chains) }),
		a.newConnections())
	return nil
}

// openKeys loads the keyset. The worker's record says which keys it has.
func (a *assembly) openKeys() (err error) {
	if a.keys, err = a.backend.Keyset(a.cfg, a.log); err != nil {
		return err
	}
	a.addServices(a.newWorkerRecord())
	return nil
}

const closeTimeout = 15 * time.Second // of the clients of agents

func (a *assembly) openPool() (err error) {
	calls := mcpcall.Config{Guard: a.content.Guard, StdioCommands: a.cfg.StdioCommands,
		CallTimeout: a.cfg.CallTimeout, Logger: a.log, Supervised: a.options.Supervised, Decoding: a.content.Decoding}
	if a.signing != nil {
		calls.Signer = a.signing
	}
	if a.pool, err = mcpcall.NewPool(calls); err != nil {
		return err
	}
	a.onClose(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = a.pool.Close(ctx)
	})
	return nil
}

// openFiles opens the servers file and the policy file.
func (a *assembly) openFiles() (err error) {
	if a.serversFile, err = openServersFile(a.cfg, a.pool, a.log); err != nil {
		return err
	}
	a.policyFile, err = backend.OpenPolicyFile(a.cfg, a.log, func() { a.releaser.Wake() }) // it may enable agents
	if err != nil {
		return err
	}
	a.store.UseOrder(a.policyFile.Order)
	a.addServices(newLoop("servers file", a.serversFile.set.Run), newLoop("policy file", a.policyFile.Run))
	return nil
}

const (
	// limitTimeout bounds the wait of rate limits for Redis. After it this process applies limits of its own.
	limitTimeout = 50 * time.Millisecond
	// A delivery that waits for a permit occupies one of the worker's slots. So at most limitRoom deliveries wait
	// for one endpoint, at most 1/limitRoomPart of the slots wait for one origin, and each waits at most permitTimeout.
	limitRoom     = 2
	limitRoomPart = 4
	permitTimeout = 200 * time.Millisecond
	// unboundPart is the divisor of HERALD_ENDPOINT_RATE for agents without a binding to their endpoint. They share
	// that part of the rate, at least one call a second, in addition to the origin's own rate.
	unboundPart = 10
)

func (a *assembly) openLimiters() (err error) {
	// An embedded Redis belongs to this worker alone, because the worker locks its data folder. So the limits are
	// counted in memory, which saves two Redis scripts per call. A restart resets the breakers.
	if !a.backend.EmbeddedRedis {
		a.fast = a.openRedis(limitTimeout)
	}
	rate := float64(a.cfg.EndpointRate)
	common := ratelimit.Config{Redis: a.fast, Workers: a.queue.Servers, Inflight: a.cfg.EndpointInflight, Rate: rate,
		Timeout: limitTimeout, PermitTTL: a.cfg.Lease, MaxWaiters: limitRoom,
		MaxOriginWaiters: a.cfg.Concurrency / limitRoomPart, MaxWait: permitTimeout, Logger: a.log}
	if a.limits, err = ratelimit.New(common); err != nil {
		return err
	}
	a.onClose(a.limits.Close)
	if a.cfg.Binding == resolver.BindingOff {
		return nil
	}
	common.Inflight, common.MaxWaiters, common.MaxOriginWaiters = 1, 1, 0
	common.Rate, common.Logger = max(1, rate/unboundPart), a.log.With("limits", "of unbound agents")
	if a.unbound, err = ratelimit.New(common); err != nil {
		return err
	}
	a.onClose(a.unbound.Close)
	return nil
}

// openRedis opens connections to Redis of their own. timeout bounds a command.
func (a *assembly) openRedis(timeout time.Duration) queue.Redis {
	c := a.queue.Client(timeout)
	a.onClose(func() { _ = c.Close() })
	return c
}

// originLimits returns the limits that openLimiters opened.
func (a *assembly) originLimits() admission.Origins {
	o := admission.Origins{Limiter: a.limits}
	if a.unbound != nil {
		o.Unbound = a.unbound
	}
	return o
}

// limitStats returns the numbers of a.limits, with the breakers of unbound agents.
func (a *assembly) limitStats() ratelimit.Stats {
	seen := a.limits.Stats()
	if a.unbound != nil {
		small := a.unbound.Stats()
		seen.Open, seen.HalfOpen = seen.Open+small.Open, seen.HalfOpen+small.HalfOpen
	}
	return seen
}

// openEfforts opens the effort budgets. They also use Redis if it is embedded, because `worker agent show` reads them
// there.
func (a *assembly) openEfforts() (err error) {
	if a.cfg.EffortBudget == 0 {
		return nil
	}
	a.efforts, err = effort.New(effort.Config{Size: a.cfg.EffortBudget, Redis: a.openRedis(limitTimeout),
		Timeout: limitTimeout, Logger: a.log})
	if err != nil {
		return err
	}
	a.onClose(a.efforts.Close)
	return a.metrics.Register(a.efforts)
}

// Maintenance has connections of its own: one holds all leader locks of the process, the others run statements of the
// leader. The reconciler, the retention and the watcher of alerts share one leader lock.
const (
	maintenanceConns   = 3
	maintenanceTimeout = 10 * time.Second
)

func (a *assembly) openAlerts() error {
	watch := alerts.WatcherConfig{Ledger: a.upkeep, Records: records.New(a.upkeep), DisableAfter: a.cfg.DisableAfter,
		Logger: a.log}
	if !a.cfg.AlertURL.IsZero() {
		sender, err := alerts.NewSender(alerts.SenderConfig{Records: a.records, URL: a.cfg.AlertURL,
			Secret: a.cfg.AlertSecret, Guard: a.content.Guard.Configured(), Schedule: a.schedule, Logger: a.log})
		if err != nil {
			return err
		}
		watch.Wake = sender.Wake
		a.addServices(newLoop("alert sender", sender.Run))
	}
	watcher, err := alerts.NewWatcher(watch)
	if err != nil {
		return err
	}
	a.addServices(newLoop("alert watcher", watcher.Run))
	return nil
}

// openTasks adds the service that takes tasks from Redis and delivers them. The probes of outages stop after it.
func (a *assembly) openTasks() error {
	for _, o := range a.outages {
		a.addServices(newLoop("outage probe", o.Run))
	}
	var srv queue.Server
	a.addServices(newLoop("archived tasks", a.queue.TrimArchives), newLoop("unread queues", func(ctx context.Context) {
		a.queue.WatchUnread(ctx, job.TaskTypes(), nil)
	}), service{name: "task server",
		start: func(context.Context) (err error) {
			srv, err = queue.NewServer(a.queue, queue.ServerConfig{Handler: a.runner, Concurrency: a.runner.Tasks(),
				Kinds: job.TaskTypes(), ShutdownTimeout: a.drainTime()})
			if err != nil {
				return err
			}
			return srv.Start()
		},
		stop: func() {
			srv.Stop()
			a.runner.StopClaiming()
			// asynq waits for its tasks but not for records that outlast them, so both share one deadline.
			last, cancel := context.WithTimeout(context.Background(), a.drainTime()+stopMargin)
			defer cancel()
			srv.Shutdown()
			a.runner.Wait(last)
			a.tokens.Flush(last)
		}})
	return nil
}

// legacyTimeout bounds one request about the old backend's list: a script that reads up to a hundred elements.
const legacyTimeout = 5 * time.Second

func (a *assembly) openLegacy() error {
	if a.cfg.LegacyQueue == "" {
		return nil
	}
	metrics, err := legacy.NewMetrics(a.metrics)
	if err != nil {
		return err
	}
	consumer, err := legacy.New(legacy.Config{Client: a.openRedis(legacyTimeout), Acceptor: a.intake,
		List: a.cfg.LegacyQueue, Metrics: metrics, Logger: a.log})
	if err != nil {
		return err
	}
	a.addServices(newLoop("legacy queue", consumer.Run))
	return nil
}
