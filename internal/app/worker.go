package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/webui"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// stopMargin is the time that a shutdown allows in addition to the longest call, to record outcomes and close
// connections.
const stopMargin = 15 * time.Second

// Options are settings that a command adds to the configuration.
type Options struct {
	Ephemeral  bool
	Supervised bool // see mcpcall.Config.Supervised
	Logger     *slog.Logger
	Trace      func(delivery.Step) // called for each step of a delivery; may be nil
	Read       func(watch.Report)  // called for ranges read from the chains of HERALD_WATCH; must not block; may be nil
	Running    func(*Worker)       // called once the worker takes tasks

	ChainTimeout time.Duration    // of one request to a chain's node; 0: the default of chain.Config
	ChainLook    time.Duration    // between two pings of the chains; 0: 5 s
	ServersTicks <-chan time.Time // starts a reading of the servers file; nil: every 2 s
	PolicyTicks  <-chan time.Time // starts a reading of the policy file; nil: every 2 s
}

// Worker is a running worker, for Options.Running.
type Worker struct {
	Store  *store.Store
	Intake *intake.Intake
	Addr   string // of the HTTP server

	Operator *operator.Operator // behind its pages and API
}

// Run serves until ctx is cancelled, then waits for running deliveries. It returns nil after an orderly stop.
func Run(ctx context.Context, cfg *config.Config, o Options) (err error) {
	o.Logger.Info("starting", "version", buildinfo.Version())
	for _, m := range cfg.Misspelt() {
		o.Logger.Warn("a variable is set that nothing reads", "name", m.Name, "hint", m.Explain())
	}
	ready := newReadiness()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var parts atomic.Pointer[assembly] // set once the parts exist; the server listens before
	identify := func(ctx context.Context, token secret.Secret) (operator.Caller, error) {
		if made := parts.Load(); made != nil {
			return made.identify(ctx, token)
		}
		return operator.Caller{}, errors.New("the service is still starting")
	}
	knownTokens := func(ctx context.Context) (func(secret.Secret) bool, error) {
		if made := parts.Load(); made != nil {
			return made.web.operator.KnownTokens(ctx)
		}
		return nil, errors.New("the service is still starting")
	}
	web, err := server.New(server.Config{Listen: cfg.Listen, Token: cfg.APIToken, Identify: identify,
		KnownTokens: knownTokens, Ready: ready.readState,
		Settings: cfg.Public(), Logger: o.Logger,
		Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{})})
	if err != nil {
		return err
	}
	o.Logger.Info("HTTP server listens", "address", "http://"+web.Addr(),
		"web_ui", "http://"+web.Addr()+server.MonitorRoot+"/")
	defer stopWeb(ctx, web)

	b, err := backend.Open(ctx, cfg, backend.Options{Ephemeral: o.Ephemeral, Logger: o.Logger})
	if askedToStop(ctx, err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if askedToStop(ctx, err) {
			err = nil
		}
		err = errors.Join(err, b.Close(stop))
	}()
	return runWorker(ctx, cfg, o, b, web, parts.Store, ready, reg)
}

// stopWeb stops the HTTP server. It may be called more than once.
func stopWeb(ctx context.Context, web *server.Server) {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = web.Shutdown(stop)
}

// askedToStop reports whether err only means that ctx was cancelled while the service was still starting.
func askedToStop(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx)))
}

func runWorker(ctx context.Context, cfg *config.Config, o Options, b *backend.Backend, web *server.Server,
	publish func(*assembly), ready *readiness, reg *prometheus.Registry) error {
	st, err := store.Open(postgres.Config{URL: b.DatabaseURL, LeaderURL: b.LeaderURL,
		MaxConns: int32(cfg.DBPool)})
	if err != nil {
		return err
	}
	defer st.Close()
	st.StrictOrder = cfg.StrictOrder
	var q *queue.Queue
	redis := dependency{redisName, func(ctx context.Context) error { return q.Ping(ctx) }}
	watched, log := watchServices(b, dependency{postgresName, st.Ping}, redis, ready, o.Logger)
	o.Logger = log
	if err := reg.Register(&surroundings{ready: ready, dataDir: b.DataDir, log: log}); err != nil {
		return err
	}
	if q, err = queue.Open(queue.Config{URL: b.RedisURL, NoIntake: cfg.RefusesRedisJobs(),
		Logger: o.Logger}); err != nil {
		return err
	}
	defer q.Close()
	ui := webui.New(q, server.MonitorRoot, intake.MaskJob)
	defer ui.Close()
	parts, err := assembleParts(cfg, b, st, q, reg, o)
	if err != nil {
		return err
	}
	defer parts.closeParts()
	publish(parts)
	defer stopWeb(ctx, web) // before the parts that it uses are closed

	stopAll, err := startAll(ctx, parts.listServices(cfg, o, web, ui, ready, watched), o.Logger)
	defer stopAll()
	if err != nil {
		return err
	}
	ready.setWaiting("start", "")
	o.Logger.Info("delivering", "concurrency", cfg.Concurrency, "chains", len(parts.content.chains))
	if o.Running != nil {
		o.Running(&Worker{Store: st, Intake: parts.intake, Addr: web.Addr(), Operator: parts.web.operator})
	}

	<-ctx.Done()
	ready.setWaiting("stop", "the worker is shutting down")
	o.Logger.Info("stopping: no new tasks are accepted, running ones finish", "running", parts.runner.Running(),
		"at_most", drainTime(cfg))
	stopAll()
	o.Logger.Info("stopped")
	return nil
}

// drainTime bounds the wait for running deliveries at a stop.
func drainTime(cfg *config.Config) time.Duration { return cfg.CallTimeout + stopMargin }

// listServices returns all services in the order of starting. They stop in reverse order: followers, then the task
// server, which waits for its running tasks, then the rest.
func (a *assembly) listServices(cfg *config.Config, o Options, web *server.Server, ui webui.Handler,
	ready *readiness, watched outages) []Service {
	log := o.Logger
	all := []Service{
		a.newTraces(log),
		// No service waits for chains: a delivery that needs a chain fails and waits by itself.
		newLoop("chain health", func(ctx context.Context) {
			watchDependencies(ctx, cmp.Or(o.ChainLook, watchInterval), a.chainParts(), reportChain(ready, log))
		}),
		a.newConnections(web, ui, ready, log),
	}
	if a.signing != nil {
		all = append(all, a.newSigning())
	}
	all = append(all,
		a.newWorkerRecord(log),
		newLoop("reconciler", a.reconciler.Run),
		newLoop("releaser", a.releaser.Run),
		newLoop("event reviews", func(ctx context.Context) { a.runner.ReviewEvents(ctx, a.upkeep) }),
		newLoop("retention", a.retention.Run),
		newLoop("alert watcher", a.watcher.Run),
		newLoop("servers file", a.serversFile.watchFile), newLoop("policy file", a.policyFile.Run),
		newLoop("wait summary", a.runner.Summarize),
		newLoop("throughput", a.throughput.Run),
		newLoop("events", a.web.api.Run))
	if a.sender != nil {
		all = append(all, newLoop("alert sender", a.sender.Run))
	}
	for _, o := range watched {
		all = append(all, newLoop("outage probe", o.Run))
	}
	all = append(all, newLoop("unread queues", func(ctx context.Context) {
		a.queue.WatchUnread(ctx, job.TaskTypes(), nil)
	}),
		a.newTaskServer(cfg))
	if a.legacy != nil {
		all = append(all, newLoop("legacy queue", a.legacy.Run))
	}
	// Followers stop first, so that another worker follows the chains while this worker's deliveries finish.
	return append(all, a.followers.listServices(ready, log)...)
}

// newConnections returns a service that waits for Postgres and Redis, and then publishes the worker's addresses.
func (a *assembly) newConnections(web *server.Server, ui webui.Handler, ready *readiness,
	log *slog.Logger) Service {
	forget := func() {}
	return &funcService{name: "connections",
		start: func(ctx context.Context) (err error) {
			if forget, err = a.awaitServices(ctx, web.Addr(), ready, log); err != nil {
				return err
			}
			a.mountWeb(web, ui)
			if a.backend.EmbeddedRedis {
				return nil
			}
			if err = a.queue.CheckServer(ctx); err != nil {
				forget()
			}
			return err
		},
		stop: func() { forget() },
	}
}

// newTaskServer returns a service that takes tasks from Redis and delivers them.
func (a *assembly) newTaskServer(cfg *config.Config) Service {
	var srv *queue.Server
	return &funcService{name: "task server",
		start: func(context.Context) (err error) {
			srv, err = a.queue.NewServer(queue.ServerConfig{Handler: a.runner, Concurrency: a.runner.Tasks(),
				Kinds: job.TaskTypes(), ShutdownTimeout: drainTime(cfg)})
			if err != nil {
				return err
			}
			return srv.Start()
		},
		stop: func() {
			srv.Stop()
			a.runner.StopClaiming()
			// asynq waits for its tasks but not for records that outlast them, so both share one deadline.
			last, cancel := context.WithTimeout(context.Background(), drainTime(cfg)+stopMargin)
			defer cancel()
			srv.Shutdown()
			a.runner.Wait(last)
			a.tokens.Flush(last)
		},
	}
}

// awaitServices waits for Postgres and Redis concurrently, so that /readyz shows all that do not answer. As soon as
// Postgres answers and its schema is current, it writes run.json. Commands on this machine then find the worker, and
// the jobs that they accept wait in Postgres.
func (a *assembly) awaitServices(ctx context.Context, addr string, ready *readiness,
	log *slog.Logger) (forget func(), err error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	redis := make(chan error, 1)
	go func() { redis <- awaitDependency(both, dependency{redisName, a.queue.Ping}, ready, log) }()
	forget = func() {}
	if err = awaitDependency(ctx, dependency{postgresName, a.store.Ping}, ready, log); err == nil {
		err = a.store.CheckPooler(ctx)
	}
	if err == nil {
		err = a.backend.MigrateOwn(ctx, ctx, log)
	}
	if err == nil {
		a.logMissingKeys(ctx, log)
		forget, err = a.backend.PublishRunFile(addr)
	}
	if err != nil {
		cancel()
		<-redis
		return nil, err
	}
	if err := <-redis; err != nil {
		forget()
		return nil, err
	}
	return forget, nil
}
