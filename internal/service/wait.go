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
	var said time.Time
	for {
		err := probe(ctx, p)
		if err == nil {
			ready.set(p.name, "")
			if !said.IsZero() {
				log.Info("reached "+p.name, "after", time.Since(said).Round(time.Second))
			}
			return nil
		}
		ready.set(p.name, err.Error())
		if time.Since(said) > sayInterval {
			said = time.Now()
			log.Warn("waiting for "+p.name, "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", p.name, context.Cause(ctx))
		case <-time.After(probeInterval):
		}
	}
}

func probe(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return p.ping(ctx)
}

// awaitChains waits for all chains at once, but only for chainPatience: one that stays away must not stop the others.
func awaitChains(ctx context.Context, chains []part, ready *readiness, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, chainPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range chains {
		wg.Go(func() {
			if err := await(ctx, c, ready, log); err != nil {
				log.Warn("going on without "+c.name+"; its deliveries wait", "error", err)
			}
		})
	}
	wg.Wait()
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
