package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/tracing"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/legacy"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator/alerts"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// assembly holds the parts of a worker, wired together.
type assembly struct {
	store       *store.Store
	records     *records.Store // of the same connections
	upkeep      *store.Store   // connections for maintenance alone, so that deliveries cannot use them up
	queue       *queue.Queue
	fast        redis.UniversalClient // for rate limits; nil with an embedded Redis
	limits      *ratelimit.Limiter
	efforts     *effort.Budgets       // nil with HERALD_EFFORT_BUDGET=off
	counting    redis.UniversalClient // for effort budgets
	unbound     *ratelimit.Limiter    // of agents without a verified endpoint; nil with HERALD_BINDING=off
	content     *Content
	verifies    []uint64 // chains whose events this worker verifies
	pool        *mcpcall.Pool
	serversFile *serversFile
	policyFile  *backend.PolicyFile // nil without HERALD_POLICY_FILE
	tokens      *auth.Authorizer
	runner      *delivery.Runner
	direct      *delivery.DirectCaller
	intake      *intake.Intake
	legacy      *legacy.Consumer      // nil without HERALD_LEGACY_QUEUE
	legacyRedis redis.UniversalClient // its connections
	backend     *backend.Backend
	keys        *secret.Keyset
	signing     *signing.Ring     // nil without HERALD_PUBLIC_URL
	spans       *tracing.Provider // nil if traces are off

	admission  *admission.Gates
	reconciler *maintenance.Reconciler
	releaser   *maintenance.Releaser
	retention  *maintenance.Retention
	watcher    *alerts.Watcher
	sender     *alerts.Sender // nil without HERALD_ALERT_URL
	followers  *chainFollowers
	throughput *throughput.Counter
	web        webParts
}

func assembleParts(cfg *config.Config, b *backend.Backend, st *store.Store, q *queue.Queue, reg *prometheus.Registry,
	o Options) (_ *assembly, err error) {
	a := &assembly{store: st, records: records.New(st), queue: q, backend: b,
		throughput: throughput.New(q, o.Logger, nil)}
	defer func() {
		if err != nil {
			a.closeParts()
		}
	}()
	keys, err := b.Keyset(cfg, o.Logger)
	if err != nil {
		return nil, err
	}
	a.keys = keys
	if a.content, err = OpenContent(cfg, o); err != nil {
		return nil, err
	}
	if err = a.openTraces(cfg, o.Logger); err != nil {
		return nil, err
	}
	guard := a.content.Guard
	if err = a.openSigning(cfg, o.Logger); err != nil {
		return nil, err
	}
	calls := mcpcall.Config{Guard: guard, StdioCommands: cfg.StdioCommands,
		CallTimeout: cfg.CallTimeout, Logger: o.Logger,
		Supervised: o.Supervised, Decoding: a.content.Decoding}
	if a.signing != nil {
		calls.Signer = a.signing
	}
	if a.pool, err = mcpcall.NewPool(calls); err != nil {
		return nil, err
	}
	if a.serversFile, err = openServersFile(cfg, a.pool, o); err != nil {
		return nil, err
	}
	// The new policy may enable agents.
	a.policyFile, err = backend.OpenPolicyFile(cfg, o.Logger, o.PolicyTicks, func() { a.releaser.Wake() })
	if err != nil {
		return nil, err
	}
	st.UseOrder(a.policyFile.Order)
	return a, a.wireDelivery(cfg, keys, reg, o)
}

func (a *assembly) wireDelivery(cfg *config.Config, keys *secret.Keyset, reg *prometheus.Registry, o Options) error {
	dispatcher, err := dispatch.New(a.queue, o.Logger)
	if err != nil {
		return err
	}
	schedule, err := outcome.NewSchedule(cfg.RetrySchedule)
	if err != nil {
		return err
	}
	metrics, err := delivery.NewMetrics(reg)
	if err != nil {
		return err
	}
	if err := a.openLimiters(cfg, o); err != nil {
		return err
	}
	parts := delivery.Config{
		Ledger: a.store, Followers: a.store, BatchSize: cfg.Batch, Resolver: a.content.Resolver,
		Fetcher: a.content.Fetcher, Caller: a.pool, Opener: keys,
		Sealer:     keys,
		Dispatcher: dispatcher, Spool: a.queue, Schedule: schedule, Decoding: a.content.Decoding,
		Chain:  func(id uint64) (delivery.Chain, bool) { c, ok := a.content.chains[id]; return c, ok },
		Verify: chain.Verify(cfg.VerifyEvent), HashPolicy: cfg.HashPolicy, CallTimeout: cfg.CallTimeout,
		Lease: cfg.Lease, LeaseMargin: cfg.LeaseMargin, Metrics: metrics, Logger: o.Logger, Trace: o.Trace,
		Throughput: a.throughput, Servers: a.serversFile.findServer, DefaultPolicy: a.policyFile.Policy,
		MayRun: cfg.MayRun, ToolAliases: cfg.ToolAliases}
	if parts.Verify != chain.VerifyOff {
		a.verifies = slices.Sorted(maps.Keys(a.content.chains))
	}
	if a.spans != nil {
		parts.Tracer = a.spans.Tracer()
	}
	if err := a.openEfforts(cfg, reg, o); err != nil {
		return err
	}
	a.admission, err = admission.New(admission.Config{Slots: cfg.Concurrency, Efforts: a.efforts,
		Origins: a.originLimits(), Logger: o.Logger})
	if err != nil {
		return err
	}
	parts.Admission = a.admission
	parts.Authorizer, err = auth.New(auth.Config{Ledger: a.store, Records: a.records, Opener: keys, Sealer: keys,
		Classify: classify.Error, OAuth: a.content.OAuth, Spool: a.queue, Logger: o.Logger})
	if err != nil {
		return err
	}
	a.tokens = parts.Authorizer
	a.direct, err = delivery.NewDirectCaller(delivery.DirectConfig{Caller: a.pool, Origins: a.originLimits(),
		MayRun: cfg.MayRun, Metrics: metrics, CallTimeout: cfg.CallTimeout, Logger: o.Logger})
	if err != nil {
		return err
	}
	executor, err := delivery.NewExecutor(parts)
	if err != nil {
		return err
	}
	a.intake, err = intake.New(intake.Config{Ledger: a.store, Dispatcher: dispatcher, Sealer: keys,
		Limits: backend.JobLimits(cfg), Redis: intake.RedisPolicy(cfg.RedisIntake), Logger: o.Logger})
	if err != nil {
		return err
	}
	if err := a.openLegacy(cfg, reg, o); err != nil {
		return err
	}
	if a.runner, err = delivery.NewRunner(executor, a.intake, cfg.Concurrency); err != nil {
		return err
	}
	if err := a.openMaintenance(cfg, dispatcher, schedule, o); err != nil {
		return err
	}
	if err := a.openAlerts(cfg, schedule, o); err != nil {
		return err
	}
	a.followers, err = openFollowers(cfg, a.backend.DatabaseURL, a.content.chains, a.upkeep.Pool, dispatcher,
		a.policyFile, metrics, o)
	if err != nil {
		return err
	}
	if err := reg.Register(a.followers); err != nil {
		return err
	}
	if err := a.openWeb(cfg, dispatcher, o); err != nil {
		return err
	}
	return reg.Register(&gauges{store: a.store, records: a.records, queue: a.queue, limits: a.limitStats,
		log: o.Logger})
}

// legacyTimeout bounds one request about the old backend's list: a script that moves up to a hundred elements.
const legacyTimeout = 5 * time.Second

func (a *assembly) openLegacy(cfg *config.Config, reg *prometheus.Registry, o Options) (err error) {
	if cfg.LegacyQueue == "" {
		return nil
	}
	if a.legacyRedis, err = a.queue.Client(legacyTimeout); err != nil {
		return err
	}
	metrics, err := legacy.NewMetrics(reg)
	if err != nil {
		return err
	}
	a.legacy, err = legacy.New(legacy.Config{Client: a.legacyRedis, Acceptor: a.intake, List: cfg.LegacyQueue,
		Metrics: metrics, Logger: o.Logger})
	return err
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

func (a *assembly) openLimiters(cfg *config.Config, o Options) (err error) {
	// An embedded Redis belongs to this worker alone, because the worker locks its data folder. So the limits are
	// counted in memory, which saves two Redis scripts per call. A restart resets the breakers.
	if !a.backend.EmbeddedRedis {
		if a.fast, err = a.queue.Client(limitTimeout); err != nil {
			return err
		}
	}
	a.limits, err = ratelimit.New(ratelimit.Config{Redis: a.fast, Workers: a.queue.Servers,
		Inflight: cfg.EndpointInflight, Rate: float64(cfg.EndpointRate), Timeout: limitTimeout,
		PermitTTL: cfg.Lease, MaxWaiters: limitRoom, MaxOriginWaiters: cfg.Concurrency / limitRoomPart,
		MaxWait: permitTimeout, Logger: o.Logger})
	if err != nil || cfg.Binding == resolver.BindingOff {
		return err
	}
	a.unbound, err = ratelimit.New(ratelimit.Config{Redis: a.fast, Workers: a.queue.Servers, Inflight: 1,
		Rate: max(1, float64(cfg.EndpointRate)/unboundPart), Timeout: limitTimeout,
		PermitTTL: cfg.Lease, MaxWaiters: 1, MaxWait: permitTimeout,
		Logger: o.Logger.With("limits", "of unbound agents")})
	return err
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
func (a *assembly) openEfforts(cfg *config.Config, reg *prometheus.Registry, o Options) (err error) {
	if cfg.EffortBudget == 0 {
		return nil
	}
	if a.counting, err = a.queue.Client(limitTimeout); err != nil {
		return err
	}
	a.efforts, err = effort.New(effort.Config{Size: cfg.EffortBudget, Redis: a.counting, Timeout: limitTimeout,
		Logger: o.Logger})
	if err != nil {
		return err
	}
	return reg.Register(a.efforts)
}

// Maintenance has connections of its own: one holds all leader locks of the process, the others run statements of the
// leader. The reconciler, the retention and the watcher of alerts share one leader lock.
const (
	maintenanceConns   = 3
	maintenanceTimeout = 10 * time.Second
)

func (a *assembly) openMaintenance(cfg *config.Config, d *dispatch.Dispatcher, s outcome.Schedule,
	o Options) (err error) {
	a.upkeep, err = store.Open(postgres.Config{URL: a.backend.DirectURL(),
		MaxConns: maintenanceConns, StatementTimeout: maintenanceTimeout})
	if err != nil {
		return err
	}
	a.upkeep.StrictOrder = cfg.StrictOrder
	a.upkeep.UseOrder(a.policyFile.Order)
	grace := time.Duration(0)
	if a.backend.EmbeddedDatabase {
		grace = -1 // Postgres stopped with this process, so no other worker has unrecorded outcomes
	}
	a.reconciler, err = maintenance.NewReconciler(maintenance.ReconcilerConfig{Ledger: a.upkeep, Dispatcher: d,
		Chains: slices.Sorted(maps.Keys(a.content.chains)), Gateway: cfg.ArweaveGateway != "", Attempts: s.Attempts(),
		Grace: grace, Logger: o.Logger})
	if err != nil {
		return err
	}
	a.retention, err = maintenance.NewRetention(maintenance.RetentionConfig{Ledger: a.upkeep, Expiry: cfg.Expiry,
		KeepFinal: cfg.Retention,
		Logger:    o.Logger})
	if err != nil {
		return err
	}
	a.releaser, err = maintenance.NewReleaser(maintenance.ReleaserConfig{Ledger: a.store, Records: a.records,
		Dispatcher: d, Disabled: a.isDisabled, Logger: o.Logger})
	if err != nil {
		return err
	}
	a.serversFile.reportChange, a.serversFile.reportCallable = a.releaser.Wake, a.releaser.MarkCallable
	a.releaser.MarkCallable(a.serversFile.callableAgents()) // an older file, or none, may have been in force before
	return nil
}

// isDisabled reports whether the policies of an agent disable it. If Postgres does not answer, the agent counts as
// disabled until the next round.
func (a *assembly) isDisabled(agent store.Agent) bool {
	row, err := a.records.AgentRow(context.Background(), agent) // the store bounds the time
	if err != nil {
		return !errors.Is(err, store.ErrNotFound)
	}
	server, _ := a.serversFile.findServer(agent)
	return policy.Levels{Default: a.policyFile.Policy(), Operator: row.Policy.Override(server.Policy),
		Own: row.OwnPolicy}.Settings().Disables()
}

func (a *assembly) openAlerts(cfg *config.Config, s outcome.Schedule, o Options) (err error) {
	watch := alerts.WatcherConfig{Ledger: a.upkeep, Records: records.New(a.upkeep), DisableAfter: cfg.DisableAfter,
		Logger: o.Logger}
	if !cfg.AlertURL.IsZero() {
		a.sender, err = alerts.NewSender(alerts.SenderConfig{Records: a.records, URL: cfg.AlertURL,
			Secret: cfg.AlertSecret, Guard: a.content.Guard.Configured(), Schedule: s, Logger: o.Logger})
		if err != nil {
			return err
		}
		watch.Wake = a.sender.Wake
	}
	a.watcher, err = alerts.NewWatcher(watch)
	return err
}

func (a *assembly) chainParts() []dependency {
	var parts []dependency
	for id, c := range a.content.chains {
		parts = append(parts, dependency{fmt.Sprintf("chain %d", id), c.Ping})
	}
	return parts
}

func (a *assembly) closeParts() {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if a.pool != nil {
		_ = a.pool.Close(ctx)
	}
	if a.content != nil {
		a.content.Close()
	}
	if a.limits != nil {
		a.limits.Close()
	}
	if a.unbound != nil {
		a.unbound.Close()
	}
	a.admission.Close()
	if a.efforts != nil {
		a.efforts.Close()
	}
	for _, c := range []redis.UniversalClient{a.fast, a.counting} {
		if c != nil {
			_ = c.Close()
		}
	}
	if a.legacyRedis != nil {
		_ = a.legacyRedis.Close()
	}
	if a.upkeep != nil {
		a.upkeep.Close()
	}
	a.web.close()
	if a.followers != nil {
		a.followers.closeStore()
	}
	if a.spans != nil { // for an assembly whose services were not started
		a.spans.Close()
	}
}
