package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
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

	ChainTimeout time.Duration // of one request to a chain's node; 0: the default of node.Config
	ChainLook    time.Duration // between two pings of the chains; 0: 5 s
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
	a := &assembly{cfg: cfg, options: o, log: o.Logger, ready: newReadiness(), metrics: prometheus.NewRegistry()}
	a.metrics.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.server, err = server.New(server.Config{Listen: cfg.Listen, Token: cfg.APIToken,
		LoadCallers: a.loadCallers, Ready: a.ready.readState, Settings: cfg.Public(), Logger: o.Logger,
		Metrics: promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{})})
	if err != nil {
		return err
	}
	o.Logger.Info("HTTP server listens", "address", "http://"+a.server.Addr(),
		"web_ui", "http://"+a.server.Addr()+server.MonitorRoot+"/")
	defer a.stopServer(ctx)

	a.backend, err = backend.Open(ctx, cfg, backend.Options{Ephemeral: o.Ephemeral, Logger: o.Logger})
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
		err = errors.Join(err, a.backend.Close(stop))
	}()
	return a.run(ctx)
}

// stopServer stops the HTTP server. It may be called more than once.
func (a *assembly) stopServer(ctx context.Context) {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = a.server.Shutdown(stop)
}

// askedToStop reports whether err only means that ctx was cancelled while the service was still starting.
func askedToStop(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx)))
}

// run opens all parts, and runs their services until ctx ends.
func (a *assembly) run(ctx context.Context) error {
	defer a.closeParts()
	if err := a.openParts(); err != nil {
		return err
	}
	defer a.stopServer(ctx) // before the parts that it uses are closed

	stopAll, err := startAll(ctx, a.services, a.log)
	defer stopAll()
	if err != nil {
		return err
	}
	a.ready.setWaiting("start", "")
	a.log.Info("delivering", "concurrency", a.cfg.Concurrency, "chains", len(a.content.chains))
	if a.options.Running != nil {
		a.options.Running(&Worker{Store: a.store, Intake: a.intake, Addr: a.server.Addr(),
			Operator: a.operator.Load()})
	}

	<-ctx.Done()
	a.ready.setWaiting("stop", "the worker is shutting down")
	a.log.Info("stopping: no new tasks are accepted, running ones finish", "running", a.runner.Running(),
		"at_most", a.drainTime())
	stopAll()
	a.log.Info("stopped")
	return nil
}

// drainTime bounds the wait for running deliveries at a stop.
func (a *assembly) drainTime() time.Duration { return a.cfg.CallTimeout + stopMargin }

// newConnections returns a service that waits for Postgres and Redis, and then publishes the worker's addresses.
func (a *assembly) newConnections() service {
	forget := func() {}
	return service{name: "connections",
		start: func(ctx context.Context) (err error) {
			if forget, err = a.awaitServices(ctx); err != nil {
				return err
			}
			a.server.Mount(a.monitor, a.routes)
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

// awaitServices waits for Postgres and Redis concurrently, so that /readyz shows all that do not answer. As soon as
// Postgres answers and its schema is current, it writes run.json. Commands on this machine then find the worker, and
// the jobs that they accept wait in Postgres.
func (a *assembly) awaitServices(ctx context.Context) (forget func(), err error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	redis := make(chan error, 1)
	go func() { redis <- awaitDependency(both, dependency{redisName, a.queue.Ping}, a.ready, a.log) }()
	if err = awaitDependency(ctx, dependency{postgresName, a.store.PingWritable}, a.ready, a.log); err == nil {
		err = a.store.CheckPooler(ctx)
	}
	if err == nil {
		err = a.backend.MigrateOwn(ctx, ctx, a.store, a.log)
	}
	if err == nil {
		a.logMissingKeys(ctx)
		forget, err = a.backend.PublishRunFile(a.server.Addr())
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
