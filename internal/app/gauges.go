package app

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics that are read when they are scraped.
var (
	openDeliveries = newGauge("herald_deliveries_open", "Deliveries that are not final, by status.", "status")
	overdueSeconds = newGauge("herald_overdue_seconds", "How late the most overdue delivery is: a wait that is over, "+
		"a task that no worker took, a lease that ran out.")
	queuedTasks  = newGauge("herald_queue_tasks", "Tasks in Redis by lane and asynq state.", "lane", "state")
	foreignTasks = newGauge("herald_foreign_tasks_total", "Tasks of other programs that this worker found in Herald's "+
		"queues and returned to them.")
	connections = newGauge("herald_postgres_connections",
		"Connections of the pool: used, idle, and the most there can be.", "state")
	openBreakers = newGauge("herald_breakers",
		"Endpoints whose breaker is open or half open, as this worker saw them last.", "state")
	sharedLimits = newGauge("herald_limits_shared",
		"1: the limits per origin are shared through Redis; 0: this worker applies its own.")
	groupedCommits = newGauge("herald_commits_grouped_total", "Claims and records that shared a commit with others, "+
		"by statement.", "statement")
	failedGroups = newGauge("herald_commit_groups_failed_total", "Groups of claims or records that failed as a whole, "+
		"so that each was committed alone.", "statement")
	expiringTokens = newGauge("herald_tokens_expiring", "Stored tokens of agents that expire within 7 days (state "+
		"soon), and that have expired and are no longer sent (state expired).", "state")
)

func newGauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// gaugeTimeout bounds the wait of a scrape for Postgres, and again for Redis. Prometheus waits for 10 s.
const gaugeTimeout = 3 * time.Second

// gauges reads its values only when it is scraped.
type gauges struct {
	store   *store.Store
	records *records.Store
	queue   *queue.Queue
	limits  func() ratelimit.Stats
	log     *slog.Logger
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{openDeliveries, overdueSeconds, queuedTasks, foreignTasks,
		connections, openBreakers, sharedLimits, groupedCommits, failedGroups, expiringTokens} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It omits values that cannot be read now, so that the scrape succeeds.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st := g.store.PoolStat()
	send(connections, float64(st.Acquired), "used")
	send(connections, float64(st.Idle), "idle")
	send(connections, float64(st.Max), "max")
	for statement, st := range g.store.GroupStats() {
		ch <- prometheus.MustNewConstMetric(groupedCommits, prometheus.CounterValue, float64(st.Grouped), statement)
		ch <- prometheus.MustNewConstMetric(failedGroups, prometheus.CounterValue, float64(st.Failed), statement)
	}
	seen := g.limits()
	send(openBreakers, float64(seen.Open), "open")
	send(openBreakers, float64(seen.HalfOpen), "half_open")
	shared := 1.0
	if seen.Local {
		shared = 0
	}
	send(sharedLimits, shared)
	ctx, cancel := context.WithTimeout(context.Background(), gaugeTimeout)
	defer cancel()
	if depth, err := g.records.Depth(ctx); err != nil {
		g.log.Warn("metrics: open deliveries could not be counted", logging.About(logging.Postgres), "error", err)
	} else {
		for status, n := range depth.ByStatus {
			send(openDeliveries, float64(n), string(status))
		}
		send(overdueSeconds, depth.Overdue.Seconds())
	}
	if tokens, err := g.records.TokensExpiring(ctx, auth.ExpiryWarning); err != nil {
		g.log.Warn("metrics: tokens that expire could not be counted", logging.About(logging.Postgres), "error", err)
	} else {
		send(expiringTokens, float64(tokens.Soon), "soon")
		send(expiringTokens, float64(tokens.Expired), "expired")
	}
	ch <- prometheus.MustNewConstMetric(foreignTasks, prometheus.CounterValue, float64(g.queue.ForeignReturned()))
	inRedis, cancelRedis := context.WithTimeout(context.Background(), gaugeTimeout)
	defer cancelRedis()
	lanes, err := g.queue.Lanes(inRedis)
	if err != nil {
		g.log.Warn("metrics: lanes could not be counted", logging.About(logging.Redis), "error", err)
	}
	for lane, states := range lanes {
		for state, n := range states {
			send(queuedTasks, float64(n), string(lane), state)
		}
	}
}

// chainReader reads tokenURI from the chain that an agent is on.
type chainReader struct{ clients map[uint64]*chain.Client }

func (r chainReader) TokenURI(ctx context.Context, chainID uint64, registry common.Address,
	id *big.Int) (string, error) {
	c, ok := r.clients[chainID]
	if !ok {
		return "", fmt.Errorf("chain %d has no RPC URL: set RPC_URL_%d", chainID, chainID)
	}
	return c.TokenURI(ctx, registry, id)
}
