package service

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
)

// gauges reads what is queued when it is scraped, not all the time.
type gauges struct {
	store *store.Store
	queue *queue.Queue
	log   *slog.Logger

	limits *ratelimit.Limiter

	deliveries, overdue, lanes, pool, breakers, shared *prometheus.Desc
}

func registerGauges(reg prometheus.Registerer, st *store.Store, q *queue.Queue, l *ratelimit.Limiter,
	log *slog.Logger) error {
	return reg.Register(&gauges{store: st, queue: q, limits: l, log: log,
		deliveries: prometheus.NewDesc("herald_deliveries_open", "Deliveries that are not final, by status.",
			[]string{"status"}, nil),
		overdue: prometheus.NewDesc("herald_overdue_seconds", "How late the most overdue delivery is: a wait that is over, a task nobody took, a lease that ran out.", nil, nil),
		lanes: prometheus.NewDesc("herald_queue_tasks", "Tasks in Redis by lane and asynq state.",
			[]string{"lane", "state"}, nil),
		pool:     prometheus.NewDesc("herald_postgres_connections", "Connections of the pool: used, idle, and the most there can be.", []string{"state"}, nil),
		breakers: prometheus.NewDesc("herald_breakers", "Endpoints whose breaker is open or half open, as this worker saw them last.", []string{"state"}, nil),
		shared:   prometheus.NewDesc("herald_limits_shared", "1: the limits per origin are shared through Redis; 0: this worker applies its own.", nil, nil),
	})
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.deliveries
	ch <- g.overdue
	ch <- g.lanes
	ch <- g.pool
	ch <- g.breakers
	ch <- g.shared
}

// Collect implements prometheus.Collector. What cannot be read now is left out: a scrape must not fail with its source.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st := g.store.PoolStat()
	send(g.pool, float64(st.Acquired), "used")
	send(g.pool, float64(st.Idle), "idle")
	send(g.pool, float64(st.Max), "max")
	seen := g.limits.Stats()
	send(g.breakers, float64(seen.Open), "open")
	send(g.breakers, float64(seen.HalfOpen), "half_open")
	shared := 1.0
	if seen.Local {
		shared = 0
	}
	send(g.shared, shared)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if depth, err := g.store.Depth(ctx); err != nil {
		g.log.Warn("metrics: open deliveries could not be counted", logging.About(logging.Postgres), "error", err)
	} else {
		for status, n := range depth.ByStatus {
			send(g.deliveries, float64(n), string(status))
		}
		send(g.overdue, depth.Overdue.Seconds())
	}
	lanes, err := g.queue.Lanes()
	if err != nil {
		g.log.Warn("metrics: lanes could not be counted", logging.About(logging.Redis), "error", err)
	}
	for lane, states := range lanes {
		for state, n := range states {
			send(g.lanes, float64(n), string(lane), state)
		}
	}
}

// chainReader reads tokenURI from whichever chain an agent is on.
type chainReader struct{ clients map[uint64]*chain.Client }

func (r chainReader) TokenURI(ctx context.Context, chainID uint64, registry common.Address,
	id *big.Int) (string, error) {
	c, ok := r.clients[chainID]
	if !ok {
		return "", fmt.Errorf("chain %d has no RPC URL: set RPC_URL_%d", chainID, chainID)
	}
	return c.TokenURI(ctx, registry, id)
}
