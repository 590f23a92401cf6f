package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/retention"
)

// openDelivery opens the intake, and the runner of deliveries with everything that an attempt uses.
func (a *assembly) openDelivery() (err error) {
	if a.schedule, err = outcome.NewSchedule(a.cfg.RetrySchedule); err != nil {
		return err
	}
	if a.callMetrics, err = delivery.NewMetrics(a.metrics); err != nil {
		return err
	}
	gates, err := admission.New(admission.Config{Slots: a.cfg.Concurrency, Efforts: a.efforts,
		Origins: a.originLimits(), Logger: a.log})
	if err != nil {
		return err
	}
	a.onClose(gates.Close)
	a.tokens, err = auth.New(auth.Config{Ledger: a.store, Records: a.records, Keys: a.keys,
		Classify: classify.Error, OAuth: a.content.OAuth, Spool: a.queue.Renewals(), Logger: a.log})
	if err != nil {
		return err
	}
	a.throughput = throughput.New(a.queue, a.log, nil)
	a.executor, err = delivery.NewExecutor(delivery.Config{
		Ledger: a.store, Members: a.store, BatchSize: a.cfg.Batch, Resolver: a.content.Resolver,
		Fetcher: a.content.Fetcher, Caller: a.pool, Keys: a.keys, Admission: gates,
		Origins: a.originLimits(), Authorizer: a.tokens, Dispatcher: a.dispatcher, Spool: a.queue.Outcomes(),
		Schedule: a.schedule,
		Decoding: a.content.Decoding,
		Chain:    func(id uint64) (event.Chain, bool) { c, ok := a.content.chains[id]; return c, ok },
		Verify:   chain.Verify(a.cfg.VerifyEvent), HashPolicy: a.cfg.HashPolicy, CallTimeout: a.cfg.CallTimeout,
		Lease: a.cfg.Lease, LeaseMargin: a.cfg.LeaseMargin, Metrics: a.callMetrics, Logger: a.log,
		Trace: a.options.Trace, Throughput: a.throughput, Servers: a.serversFile.findServer,
		DefaultPolicy: a.policyFile.Get, MayRun: a.cfg.MayRun, ToolAliases: a.cfg.ToolAliases, Tracer: a.tracer})
	if err != nil {
		return err
	}
	a.intake, err = intake.New(intake.Config{Ledger: a.store, Dispatcher: a.dispatcher, Sealer: a.keys,
		Limits: backend.JobLimits(a.cfg), Redis: intake.RedisPolicy(a.cfg.RedisIntake), Logger: a.log})
	if err != nil {
		return err
	}
	if a.runner, err = delivery.NewRunner(a.executor, a.intake, a.cfg.Concurrency); err != nil {
		return err
	}
	a.addServices(newLoop("wait summary", a.runner.Summarize), newLoop("throughput", a.throughput.Run))
	return nil
}

func (a *assembly) openMaintenance() (err error) {
	a.upkeep, err = a.openStore(postgres.Config{URL: a.backend.DirectURL(), MaxConns: maintenanceConns,
		StatementTimeout: maintenanceTimeout})
	if err != nil {
		return err
	}
	a.upkeep.UseOrder(a.policyFile.Order)
	grace := time.Duration(0)
	if a.backend.EmbeddedDatabase {
		grace = -1 // Postgres stopped with this process, so no other worker has unrecorded outcomes
	}
	var pooler func(context.Context) error
	if !a.backend.LeaderURL.IsZero() {
		pooler = a.store.Ping
	}
	reconciler, err := maintenance.NewReconciler(maintenance.ReconcilerConfig{Ledger: a.upkeep,
		Dispatcher: a.dispatcher, Chains: a.chainIDs(), Gateway: a.cfg.ArweaveGateway != "",
		Attempts: a.schedule.Attempts(), Grace: grace, Pooler: pooler, CountDead: a.callMetrics.CountDead,
		Logger: a.log})
	if err != nil {
		return err
	}
	retention, err := maintenance.NewRetention(maintenance.RetentionConfig{Ledger: a.upkeep,
		OldData: retention.New(a.upkeep.Pool), Expiry: a.cfg.Expiry, KeepFinal: a.cfg.Retention,
		CountDead: a.callMetrics.CountDead, Logger: a.log})
	if err != nil {
		return err
	}
	a.releaser, err = maintenance.NewReleaser(maintenance.ReleaserConfig{Ledger: a.store, Records: a.records,
		Dispatcher: a.dispatcher, Disabled: a.isDisabled, Logger: a.log})
	if err != nil {
		return err
	}
	reviewer := &maintenance.Reviewer{Ledger: a.upkeep, Events: a.runner.Events(), Dispatcher: a.dispatcher,
		Logger: a.log}
	a.serversFile.reportChange, a.serversFile.reportCallable = a.releaser.Wake, a.releaser.MarkCallable
	a.releaser.MarkCallable(a.serversFile.callableAgents()) // an older file, or none, may have been in force before
	a.addServices(newLoop("reconciler", reconciler.Run), newLoop("releaser", a.releaser.Run),
		newLoop("event reviews", reviewer.Run), newLoop("retention", retention.Run))
	return nil
}

// chainIDs returns the chains that have a node.
func (a *assembly) chainIDs() []uint64 { return slices.Sorted(maps.Keys(a.content.chains)) }

// isDisabled reports whether the policies of an agent disable it. If Postgres does not answer, the agent counts as
// disabled until the next round.
func (a *assembly) isDisabled(agent erc8004.Agent) bool {
	row, err := a.records.AgentRow(context.Background(), agent) // the store bounds the time
	if err != nil {
		return !errors.Is(err, ledger.ErrNotFound)
	}
	server, _ := a.serversFile.findServer(agent)
	return policy.Levels{Default: a.policyFile.Get(), Operator: row.Policy.Override(server.Policy),
		Own: row.OwnPolicy}.Settings().Disables()
}
