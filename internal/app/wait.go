package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

const (
	probeTimeout  = 3 * time.Second
	probeInterval = time.Second
	watchInterval = 5 * time.Second // between health checks of the chains
)

// Names in /readyz and metrics of the services without which a worker cannot run.
const (
	postgresName = "postgres"
	redisName    = "redis"
)

// dependency is a service that the worker needs, and a function that checks whether it answers.
type dependency struct {
	name string // as in /readyz and the log: postgres, redis, chain 8453
	ping func(context.Context) error
}

// awaitDependency waits until p answers. It logs once that it waits, and /readyz shows it.
func awaitDependency(ctx context.Context, p dependency, ready *readiness, log *slog.Logger) error {
	began, logged := time.Now(), false
	for {
		err := probeDependency(ctx, p)
		if err == nil {
			ready.setWaiting(p.name, "")
			if logged {
				log.Info("reached "+p.name, "after", time.Since(began).Round(time.Second))
			}
			return nil
		}
		ready.setWaiting(p.name, err.Error())
		if !logged {
			logged = true
			log.Warn("waiting for "+p.name+"; the worker begins when it answers", "error", err)
		}
		if loop.Pause(ctx, probeInterval) != nil {
			return fmt.Errorf("waiting for %s: %w", p.name, context.Cause(ctx))
		}
	}
}

// probeDependency pings p once, with a timeout of probeTimeout.
func probeDependency(ctx context.Context, p dependency) error {
	asked, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.ping(asked)
	if err != nil && ctx.Err() == nil && asked.Err() != nil {
		return &silentError{err}
	}
	return err
}

// silentError reports that a dependency did not answer within probeTimeout.
type silentError struct{ err error }

func (e *silentError) Error() string { return fmt.Sprintf("no answer within %s", probeTimeout) }
func (e *silentError) Unwrap() error { return e.err }

// describeError returns the text of err, or "" without one.
func describeError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// watchChains pings the chains at once and then at every interval, until ctx ends. A chain that does not answer
// degrades the worker but stops nothing.
func (a *assembly) watchChains(ctx context.Context, chains []dependency) {
	pingAll := func(ctx context.Context) {
		var wg sync.WaitGroup
		for _, p := range chains {
			wg.Go(func() {
				if err := probeDependency(ctx, p); ctx.Err() == nil { // otherwise the ping was interrupted
					a.reportChain(p.name, describeError(err))
				}
			})
		}
		wg.Wait()
	}
	pingAll(ctx)
	for range loop.Every(ctx, cmp.Or(a.options.ChainLook, watchInterval)) {
		pingAll(ctx)
	}
}

func (a *assembly) reportChain(name, why string) {
	switch changed := a.ready.setDegraded(name, why); {
	case changed && why != "":
		a.log.Warn(name+" cannot be used: its deliveries wait, others go on", "error", why)
	case changed:
		a.log.Info(name + " can be used again")
	}
}
