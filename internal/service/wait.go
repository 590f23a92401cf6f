package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	probeTimeout  = 3 * time.Second
	probeInterval = time.Second
	sayInterval   = 10 * time.Second // how often a wait is told again in the log
	chainPatience = time.Minute      // how long tasks are not taken because a chain is away; /readyz goes on naming it
	watchInterval = 5 * time.Second  // how often readiness is looked at while running
)

// part is something the service needs and can ask whether it is there.
type part struct {
	name string // as /readyz and the log call it: postgres, redis, chain 8453
	ping func(context.Context) error
}

// await asks until the part answers, telling the log and /readyz what it waits for.
func await(ctx context.Context, p part, ready *readiness, log *slog.Logger) error {
	began, said := time.Now(), time.Time{}
	for {
		err := probe(ctx, p)
		if err == nil {
			ready.set(p.name, "")
			if !said.IsZero() {
				log.Info("reached "+p.name, "after", time.Since(began).Round(time.Second))
			}
			return nil
		}
		ready.set(p.name, err.Error())
		if time.Since(said) > sayInterval {
			said = time.Now()
			log.Warn("waiting for "+p.name, "error", err)
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

func probe(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return p.ping(ctx)
}

// awaitAll waits for everything at once, so that /readyz names all that is away. Chains are waited for only for chainPatience: one
// that stays away must not stop the others.
func awaitAll(ctx context.Context, needed, chains []part, ready *readiness, log *slog.Logger) error {
	patient, cancel := context.WithTimeoutCause(ctx, chainPatience, fmt.Errorf("not there after %s", chainPatience))
	defer cancel()
	errs := make([]error, len(needed))
	var wg sync.WaitGroup
	for i, p := range needed {
		wg.Go(func() { errs[i] = await(ctx, p, ready, log) })
	}
	for _, c := range chains {
		wg.Go(func() {
			if err := await(patient, c, ready, log); err != nil && ctx.Err() == nil {
				log.Warn("going on without "+c.name+"; its deliveries wait", "error", err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

// watch keeps readiness true while the service runs.
func watch(ctx context.Context, parts []part, ready *readiness) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var wg sync.WaitGroup
		for _, p := range parts {
			wg.Go(func() {
				why := ""
				if err := probe(ctx, p); err != nil && ctx.Err() == nil {
					why = err.Error()
				}
				ready.set(p.name, why)
			})
		}
		wg.Wait()
	}
}
