package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/prometheus/client_golang/prometheus"
)

// chainFollowers reads the chains of HERALD_WATCH. It has its own connections to Postgres, so that a chain with many
// events takes no connection from deliveries.
type chainFollowers struct {
	store  *store.Store
	ready  *readiness
	log    *slog.Logger
	chains []followedChain

	mu   sync.Mutex
	seen map[uint64]progress // chain id → last measurement of watchLag
}

// progress is how far a chain has been read.
type progress struct {
	cursor cursor.State // that of the contract that was read least far
	lag    node.Lag
	behind bool
	known  bool // Postgres and a node both answered
}

// followedChain follows one chain. If Postgres or the nodes do not answer, its watcher waits and logs that, and affects
// no other part.
type followedChain struct {
	id      uint64
	client  *chain.Client
	watcher *watch.Watcher
}

// followerTimeout bounds the commit of a range.
const followerTimeout = 30 * time.Second

// openFollowers adds two services for each chain: its reader, and the measurement of its lag.
func (a *assembly) openFollowers() error {
	r := &chainFollowers{ready: a.ready, log: a.log, seen: map[uint64]progress{}}
	a.followers = r
	if err := a.metrics.Register(r); err != nil || len(a.cfg.Watch) == 0 {
		return err
	}
	var err error
	// Each chain has a connection for its commits. One more measures how far the chains are read.
	r.store, err = a.openStore(postgres.Config{URL: a.backend.DatabaseURL, LeaderURL: a.cfg.LeaderURL,
		MaxConns: int32(1 + len(a.cfg.Watch)), Locks: a.upkeep.Pool, StatementTimeout: followerTimeout})
	if err != nil {
		return err
	}
	r.store.UseOrder(a.policyFile.Order)
	for _, id := range a.cfg.Watch {
		client := a.content.chains[id]
		w, err := watch.New(watch.Config{Chain: client.Reader, Deployment: a.cfg.Chains[id].Registries.Default(),
			Ledger: r.store, Dispatcher: a.dispatcher, Limits: backend.JobLimits(a.cfg), Filter: a.policyFile.SkipJob,
			CountFiltered: a.callMetrics.CountFiltered, Report: a.options.Read, Logger: a.log})
		if err != nil {
			return fmt.Errorf("HERALD_WATCH: %w", err)
		}
		c := followedChain{id, client, w}
		r.chains = append(r.chains, c)
		a.addServices(
			newLoop(fmt.Sprintf("reader of chain %d", id), func(ctx context.Context) {
				if err := w.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
					a.log.Error("a chain is no longer read: restart the worker", "chain", id, "error", err)
				}
			}),
			newLoop(fmt.Sprintf("lag of chain %d", id), func(ctx context.Context) { r.watchLag(ctx, c) }))
	}
	return nil
}

const (
	lagInterval = 15 * time.Second
	// behindAfter is the lag at which the worker reports a chain as late.
	behindAfter = time.Minute
)

// watchLag measures a chain's lag every lagInterval and reports it in the readiness. A late chain only degrades the
// worker, which still delivers accepted events.
func (r *chainFollowers) watchLag(ctx context.Context, c followedChain) {
	look := func(ctx context.Context) {
		p := r.measureProgress(ctx, c)
		if ctx.Err() != nil {
			return
		}
		r.storeProgress(c.id, p)
		if p.cursor.StalledSince != nil || p.known { // otherwise the last report stays in force
			r.reportProgress(c.id, p)
		}
	}
	look(ctx)
	for range loop.Every(ctx, lagInterval) {
		look(ctx)
	}
}

// reportProgress logs that a chain has become late or is up to date again, and reports it in the readiness.
func (r *chainFollowers) reportProgress(chainID uint64, p progress) {
	why := ""
	switch {
	case p.cursor.StalledSince != nil:
		why = fmt.Sprintf("nothing is read since %s: %s", p.cursor.StalledSince.UTC().Format(time.DateTime),
			p.cursor.StalledWhy)
	case p.behind:
		why = fmt.Sprintf("%s not read yet, the oldest is %s behind the chain's newest",
			text.Count(p.lag.Blocks, "block is", "blocks are"), p.lag.Time.Round(time.Second))
	}
	switch changed := r.ready.setDegraded(fmt.Sprintf("reading chain %d", chainID), why); {
	case changed && why != "":
		r.log.Warn("a chain's events come late: "+why, "chain", chainID)
	case changed:
		r.log.Info("a chain's events are read up to its head again", "chain", chainID)
	}
}

// measureProgress measures how far a chain has been read: all of its contracts. If the node does not answer, the
// chain's health check reports that.
func (r *chainFollowers) measureProgress(ctx context.Context, c followedChain) (p progress) {
	ctx, cancel := context.WithTimeout(ctx, lagInterval)
	defer cancel()
	cursors, err := r.store.Cursors(ctx, c.id)
	cursors = slices.DeleteFunc(cursors, func(s cursor.State) bool {
		return !slices.Contains(c.watcher.Keys(), s.Key)
	})
	if err != nil || len(cursors) == 0 {
		return p
	}
	p.cursor = slices.MinFunc(cursors, func(a, b cursor.State) int { return cmp.Compare(a.Next, b.Next) })
	if p.cursor.Next == 0 {
		return progress{}
	}
	if p.lag, err = c.client.Lag(ctx, p.cursor.Next-1); err != nil {
		return p
	}
	p.known, p.behind = true, p.lag.Time >= behindAfter
	return p
}

func (r *chainFollowers) storeProgress(chainID uint64, p progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[chainID] = p
}

// Metrics of the followed chains.
var (
	chainHead = newGauge("herald_chain_head_block", "The newest block of a followed chain, as its nodes say.", "chain")
	chainNext = newGauge("herald_chain_next_block", "The first block of a followed chain that is not read yet.",
		"chain")
	chainLag = newGauge("herald_chain_lag_blocks", "How many blocks of a followed chain are not read yet. "+
		"For alerts use herald_chain_lag_seconds: block times differ between chains.", "chain")
	chainLate = newGauge("herald_chain_lag_seconds", "How late the events of a followed chain come: the time between "+
		"the last block that was read and the newest.", "chain")
	chainReorgs = newGauge("herald_chain_reorgs_total", "How often blocks of a followed chain were read again.",
		"chain")
	chainUp = newGauge("herald_chain_up", "1: the position in Postgres and the head of a node are known; "+
		"0: one of them did not, and the other gauges of the chain are missing.", "chain")
)

// Describe implements prometheus.Collector.
func (r *chainFollowers) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{chainHead, chainNext, chainLag, chainLate, chainReorgs, chainUp} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It returns the last measurements and makes no request to a node.
func (r *chainFollowers) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.seen {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v uint64) {
			ch <- prometheus.MustNewConstMetric(d, kind, float64(v), fmt.Sprint(id))
		}
		if !p.known {
			send(chainUp, prometheus.GaugeValue, 0)
			continue
		}
		send(chainUp, prometheus.GaugeValue, 1)
		send(chainHead, prometheus.GaugeValue, p.lag.Head)
		send(chainNext, prometheus.GaugeValue, p.cursor.Next)
		send(chainLag, prometheus.GaugeValue, p.lag.Blocks)
		send(chainLate, prometheus.GaugeValue, uint64(p.lag.Time.Seconds()))
		send(chainReorgs, prometheus.CounterValue, p.cursor.Reorgs)
	}
}
