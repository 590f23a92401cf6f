package service

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
	watchInterval = 5 * time.Second // how often chains are looked at while running
)

// The services that a worker cannot do without, as /readyz and the metrics call them.
const (
	postgresName = "postgres"
	redisName    = "redis"
)

// dependency is something the service needs and can ask whether it is there.
type dependency struct {
	name string // as /readyz and the log call it: postgres, redis, chain 8453
	ping func(context.Context) error
}

// awaitDependency asks until the part answers, telling the log (once) and /readyz what it waits for.
func awaitDependency(ctx context.Context, p dependency, ready *readiness, log *slog.Logger) error {
	began, said := time.Now(), false
	for {
		err := probeDependency(ctx, p)
		if err == nil {
			ready.setWaiting(p.name, "")
			if said {
				log.Info("reached "+p.name, "after", time.Since(began).Round(time.Second))
			}
			return nil
		}
		ready.setWaiting(p.name, err.Error())
		if !said {
			said = true
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

// probeDependency asks once, for at most probeTimeout.
func probeDependency(ctx context.Context, p dependency) error {
	asked, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.ping(asked)
	if err != nil && ctx.Err() == nil && asked.Err() != nil {
		return &silentError{err}
	}
	return err
}

// silentError means that a part said nothing for probeTimeout.
type silentError struct{ err error }

func (e *silentError) Error() string { return fmt.Sprintf("no answer within %s", probeTimeout) }
func (e *silentError) Unwrap() error { return e.err }

// watchDependencies keeps readiness true while the service runs: it looks at once and then at every interval. tell
// gets each part's name and why it is away, empty when it is there.
func watchDependencies(ctx context.Context, interval time.Duration, parts []dependency, tell func(name, why string)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		var wg sync.WaitGroup
		for _, p := range parts {
			wg.Go(func() {
				err := probeDependency(ctx, p)
				switch {
				case ctx.Err() != nil: // that it did not answer says nothing then
				case err != nil:
					tell(p.name, err.Error())
				default:
					tell(p.name, "")
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

// reportChain is watch's for chains: one that is away degrades the service and stops nothing else.
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
