package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/logging"
)

// outages track whether this process reaches Postgres and Redis. Logs and /readyz use this state.
type outages []*logging.Outage

// watchServices creates the outages, and the logger for all parts that use these services.
func watchServices(b *backend.Backend, postgres, redis dependency, ready *readiness,
	log *slog.Logger) (outages, *slog.Logger) {
	watch := func(s logging.Service, p dependency, look string) *logging.Outage {
		return logging.NewOutage(logging.OutageConfig{Service: s, Logger: log,
			Begins: fmt.Sprintf("%s is away: deliveries wait, nothing is lost. %s", s, look),
			Probe:  func(ctx context.Context) error { return probeDependency(ctx, p) },
			Probed: func(err error) {
				why := ""
				if err != nil {
					why = err.Error()
				}
				ready.setWaiting(p.name, why)
			}})
	}
	all := outages{
		watch(logging.Postgres, postgres, whereToLook("DATABASE_URL", b.EmbeddedDatabase)),
		watch(logging.Redis, redis, whereToLook("REDIS_URL", b.EmbeddedRedis)),
	}
	return all, slog.New(logging.Handler(log.Handler(), all...))
}

func whereToLook(variable string, embedded bool) string {
	if embedded {
		return "It is the worker's own: look for a full disk or memory, and " +
			"restart the worker if it does not come back."
	}
	return "Check " + variable + "'s server."
}
