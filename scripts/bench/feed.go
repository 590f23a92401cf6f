//go:build linux

package main

import (
	"context"
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
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
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
func newFeeder(databaseURL, redisURL string, strictOrder bool) *feeder {
	quiet := slog.New(slog.DiscardHandler)
	f := &feeder{store: script.Must(store.Open(postgres.Config{URL: secret.New(databaseURL), MaxConns: 4})),
		queue: script.Must(queue.Open(queue.Config{URL: secret.New(redisURL), Logger: quiet}))}
	f.store.StrictOrder = strictOrder
	f.inspector = asynq.NewInspector(f.queue.ConnOpt())
	keys := script.Must(secret.Create()) // the jobs have no secret headers
	f.intake = script.Must(intake.New(intake.Config{Ledger: f.store, Dispatcher: script.Must(dispatch.New(f.queue, quiet)), Sealer: keys,
		Limits: limits, Logger: quiet}))
	return f
}

var limits = job.Limits{MaxTimeout: time.Minute, Registries: erc8004.ListedRegistries}

func (f *feeder) close() {
	_ = f.inspector.Close()
	_ = f.queue.Close()
	f.store.Close()
}

// accept commits n jobs. Each has another client; the agents take turns.
func (f *feeder) accept(ctx context.Context, agents *trial.Agents, n int) {
	for n > 0 {
		bodies := make([][]byte, min(n, feedBatch))
		for i := range bodies {
			bodies[i] = []byte(strings.TrimSpace(agents.Line(f.serial%agents.Len(), f.serial)))
			f.serial++
		}
		answers := script.Must(f.intake.Submit(ctx, bodies, ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}))
		for _, a := range answers {
			if a.Verdict != ledger.Accepted {
				script.Fail("a job is %s: %s %s", a.Verdict, a.Path, a.Problem)
			}
		}
		n -= len(bodies)
	}
}

// lanes are the lanes of the worker that pause stops.
var lanes = []string{"default", "first", "retry", "bulk", "upkeep"}

// pause pauses each lane, as the web UI's button does. So workers take no tasks until all rows exist and the
// measurement starts.
func (f *feeder) pause() {
	for _, lane := range lanes {
		script.Check(f.inspector.PauseQueue(lane))
	}
}

// countWaiting returns the number of tasks in the lane of first attempts.
func (f *feeder) countWaiting() int {
	return script.Must(f.inspector.GetQueueInfo(string(queue.First))).Pending
}

func (f *feeder) resume() {
	for _, lane := range lanes {
		script.Check(f.inspector.UnpauseQueue(lane))
	}
}
