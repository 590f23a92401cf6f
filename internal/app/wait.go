package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
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
		timer := time.NewTimer(probeInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w", p.name, context.Cause(ctx))
		case <-timer.C:
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

// watchDependencies pings the parts at once and then every interval, until ctx is cancelled. It passes each part's name
// and error text to the callback. The text is empty if the part answers.
func watchDependencies(ctx context.Context, interval time.Duration, parts []dependency, report func(name, why string)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		var wg sync.WaitGroup
		for _, p := range parts {
			wg.Go(func() {
				err := probeDependency(ctx, p)
				switch {
				case ctx.Err() != nil: // the ping failed only because ctx was cancelled
				case err != nil:
					report(p.name, err.Error())
				default:
					report(p.name, "")
				}
			})
		}
		wg.Wait()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// reportChain returns a callback for watchDependencies. A chain that does not answer degrades the worker but stops
// nothing.
func reportChain(ready *readiness, log *slog.Logger) func(name, why string) {
	return func(name, why string) {
		switch changed := ready.setDegraded(name, why); {
		case changed && why != "":
			log.Warn(name+" cannot be used: its deliveries wait, others go on", "error", why)
		case changed:
			log.Info(name + " can be used again")
		}
	}
}
