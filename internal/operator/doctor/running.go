package doctor

import (
	"context"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
)

// countWorkers warns if deliveries are open and no worker is running.
func (d *doctor) countWorkers(ctx context.Context) []Finding {
	if !d.migrated {
		return nil
	}
	workers, err := ask(ctx, d.store.Workers)
	if err != nil {
		return reportFailure("%v", err)
	}
	if len(workers) > 0 {
		return reportOK("%d running", len(workers))
	}
	depth, err := ask(ctx, d.store.Depth)
	if err != nil {
		return reportFailure("%v", err)
	}
	open := int64(0)
	for _, n := range depth.ByStatus {
		open += n
	}
	if open == 0 {
		return reportOK("none is running, and no delivery is open")
	}
	return reportWarning("none is running, and %d deliveries are open: start one with `worker`", open)
}

// countFailingAgents warns about agents whose last call failed, or that need a token.
func (d *doctor) countFailingAgents(ctx context.Context) (findings []Finding) {
	if !d.migrated {
		return nil
	}
	counts, err := ask(ctx, d.store.CountAgents)
	if err != nil {
		return reportFailure("%v", err)
	}
	for _, state := range []string{store.StateFailed, store.StateNeedsAuth} {
		if n := counts[state]; n > 0 {
			findings = append(findings, reportWarning("%d are in state %s: `worker agent list --state %[2]s`, and `worker agent "+
				"show CHAIN:AGENT` says what to do", n, state)...)
		}
	}
	return findings
}

// countRejected warns about deliveries that ended without success in the last hour, as all workers counted them in Redis.
func (d *doctor) countRejected(ctx context.Context) (findings []Finding) {
	if d.redis.IsZero() {
		return nil
	}
	q, err := queue.Open(queue.Config{URL: d.redis, DialOnce: true, Logger: d.Logger})
	if err != nil {
		return nil // checkRedis reports the error
	}
	defer q.Close()
	minutes, err := ask(ctx, func(ctx context.Context) ([]throughput.Minute, error) {
		return throughput.New(q, d.Logger, time.Now).Minutes(ctx, 60)
	})
	if err != nil {
		return nil // checkRedis reports the error
	}
	for _, status := range []store.Status{store.Rejected, store.Dead} {
		n := int64(0)
		for _, m := range minutes {
			n += m.Outcomes[status]
		}
		if n > 0 {
			findings = append(findings, reportWarning("%d became %s in the last hour: `worker delivery list --status %[2]s`, and "+
				"`worker delivery show ID` says what to do", n, status)...)
		}
	}
	return findings
}

// countBreakers warns about open circuit breakers of the worker that runs on this machine.
func (d *doctor) countBreakers(ctx context.Context) []Finding {
	var stats struct{ OpenBreakers int }
	if d.worker == "" {
		return nil
	}
	code, err := getJSON(ctx, d.worker, "/v1/stats", d.Settings.APIToken, &stats)
	if err != nil || code != http.StatusOK || stats.OpenBreakers == 0 { // compareSettings reports the error
		return nil
	}
	return reportWarning("%d circuit breakers are open: their endpoints are not called for a while; "+
		"`worker agent list --sort failing`", stats.OpenBreakers)
}
