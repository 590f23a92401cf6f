//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/hibiken/asynq"
)

// feeder accepts jobs like an indexer's enqueue, but in this process. The measurement begins after all jobs are
// accepted.
type feeder struct {
	store     *store.Store
	queue     *queue.Queue
	inspector *asynq.Inspector
	intake    *intake.Intake
	serial    int
}

const feedBatch = 200

// newFeeder returns a feeder. Its connections end with the program if newFeeder fails.
func newFeeder(databaseURL, redisURL string, strictOrder bool) (f *feeder, err error) {
	f = &feeder{}
	quiet := slog.New(slog.DiscardHandler)
	if f.store, err = store.Open(postgres.Config{URL: secret.New(databaseURL), MaxConns: 4}); err != nil {
		return nil, err
	}
	f.store.StrictOrder = strictOrder
	if f.queue, err = queue.Open(queue.Config{URL: secret.New(redisURL), Logger: quiet}); err != nil {
		return nil, err
	}
	f.inspector = asynq.NewInspector(f.queue.ConnOpt())
	dispatcher, err := dispatch.New(f.queue, quiet)
	if err != nil {
		return nil, err
	}
	keys, err := secret.Create() // the jobs have no secret headers
	if err != nil {
		return nil, err
	}
	f.intake, err = intake.New(intake.Config{Ledger: f.store, Dispatcher: dispatcher, Sealer: keys, Limits: limits, Logger: quiet})
	return f, err
}

var limits = job.Limits{MaxTimeout: time.Minute, Registries: erc8004.ListedRegistries}

func (f *feeder) close() {
	_ = f.inspector.Close()
	_ = f.queue.Close()
	f.store.Close()
}

// accept commits n jobs. Each has another client; the agents take turns.
func (f *feeder) accept(ctx context.Context, agents *trial.Agents, n int) error {
	for n > 0 {
		bodies := make([][]byte, min(n, feedBatch))
		for i := range bodies {
			bodies[i] = []byte(strings.TrimSpace(agents.Line(f.serial%agents.Len(), f.serial)))
			f.serial++
		}
		answers, err := f.intake.Submit(ctx, bodies, store.Source{Name: store.SourceCommand, Trust: store.TrustDirect})
		if err != nil {
			return err
		}
		for _, a := range answers {
			if a.Verdict != store.Accepted {
				return fmt.Errorf("a job is %s: %s %s", a.Verdict, a.Path, a.Problem)
			}
		}
		n -= len(bodies)
	}
	return nil
}

// lanes are the lanes of the worker that pause stops.
var lanes = []string{"default", "first", "retry", "bulk", "upkeep"}

// pause pauses each lane, as the web UI's button does. So workers take no tasks until all rows exist and the
// measurement starts.
func (f *feeder) pause() error {
	for _, lane := range lanes {
		if err := f.inspector.PauseQueue(lane); err != nil {
			return err
		}
	}
	return nil
}

// countWaiting returns the number of tasks in the lane of first attempts.
func (f *feeder) countWaiting() (int, error) {
	info, err := f.inspector.GetQueueInfo(string(queue.First))
	if err != nil {
		return 0, err
	}
	return info.Pending, nil
}

func (f *feeder) resume() error {
	var errs []error
	for _, lane := range lanes {
		errs = append(errs, f.inspector.UnpauseQueue(lane))
	}
	return errors.Join(errs...)
}
