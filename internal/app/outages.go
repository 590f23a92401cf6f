package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/agentherald/herald/internal/base/logging"
)

// watchServices creates the outages, which track whether this process reaches Postgres and Redis, and the logger of all
// parts that use these services. Logs and /readyz use the state of the outages.
func (a *assembly) watchServices() {
	watch := func(s logging.Service, p dependency, look string) *logging.Outage {
		return logging.NewOutage(logging.OutageConfig{Service: s, Logger: a.log,
			Begins: fmt.Sprintf("%s is away: deliveries wait, nothing is lost. %s", s, look),
			Probe:  func(ctx context.Context) error { return probeDependency(ctx, p) },
			Probed: func(err error) { a.ready.setWaiting(p.name, describeError(err)) }})
	}
	redis := dependency{redisName, func(ctx context.Context) error { return a.queue.Ping(ctx) }}
	a.outages = []*logging.Outage{
		watch(logging.Postgres, dependency{postgresName, a.store.CheckWritable},
			whereToLook("DATABASE_URL", a.backend.EmbeddedDatabase)),
		watch(logging.Redis, redis, whereToLook("REDIS_URL", a.backend.EmbeddedRedis)),
	}
	a.log = slog.New(logging.Handler(a.log.Handler(), a.outages...))
}

func whereToLook(variable string, embedded bool) string {
	if embedded {
		return "It is the worker's own: look for a full disk or memory, and " +
			"restart the worker if it does not come back."
	}
	return "Check " + variable + "'s server."
}
