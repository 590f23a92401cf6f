package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// ReleaserLedger is the store as a Releaser needs it.
type ReleaserLedger interface {
	ReleaseEnabled(ctx context.Context, except func(store.Agent) bool) (released int, tasks []store.Task, err error)
	ReleaseHeld(ctx context.Context, a store.Agent, reasons ...reason.Reason) (released int, tasks []store.Task, err error)
	AgentRow(ctx context.Context, a store.Agent) (store.AgentRow, error)
}

// callableReasons hold what waits for somebody to say where an agent is called, and with what.
var callableReasons = []reason.Reason{reason.AuthRequired, reason.ChainUnconfigured, reason.GatewayUnconfigured}

// ReleaserConfig makes a Releaser.
type ReleaserConfig struct {
	Ledger     ReleaserLedger
	Dispatcher Dispatcher
	// Disabled tells whether the servers file disables an agent; nil: there is none.
	Disabled func(store.Agent) bool
	// Again is how long after a round the next one comes: after one that failed, and once after one that was asked for,
	// since a delivery that was claimed before it may have been held after it. Default 1 min.
	Again time.Duration
	// Ticks ask for a round now and then. Default: every 10 min while Run runs, for what a worker held that still had
	// an older servers file, as in a rolling restart.
	Ticks  <-chan time.Time
	Logger *slog.Logger
}

// releaseInterval is the default of Ticks.
const releaseInterval = 10 * time.Minute

// Releaser queues what is held for agents that nobody disables any more, neither their row nor the servers file, and
// what waited for the servers file to say where an agent is called. It makes a round when it starts, whenever it is
// woken, and now and then.
type Releaser struct {
	ReleaserConfig
	wake chan struct{}

	mu       sync.Mutex
	callable map[store.Agent]int // rounds that still release what is held of it: see MarkCallable
}

// NewReleaser checks the configuration.
func NewReleaser(cfg ReleaserConfig) (*Releaser, error) {
	if cfg.Ledger == nil || cfg.Dispatcher == nil {
		return nil, errors.New("maintenance: a releaser needs a ledger and a dispatcher")
	}
	cfg.Again = cmp.Or(cfg.Again, time.Minute)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Releaser{ReleaserConfig: cfg, wake: make(chan struct{}, 1), callable: map[store.Agent]int{}}, nil
}

// Wake asks for a round soon. It does not block.
func (r *Releaser) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // one is coming
	}
}

// MarkCallable has the next two rounds also release what is held of these agents because it was not known where, or
// with which credential, they are called: the servers file says it, or says it anew. Wake asks for the first of them.
// It does not block.
func (r *Releaser) MarkCallable(agents []store.Agent) {
	const rounds = 2 // a delivery that was claimed before may be held after the first
	r.mu.Lock()
	for _, a := range agents {
		r.callable[a] = rounds
	}
	r.mu.Unlock()
}

// Run makes rounds until the context ends.
func (r *Releaser) Run(ctx context.Context) {
	ticks := r.Ticks
	if ticks == nil {
		ticker := time.NewTicker(releaseInterval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for asked := true; ; {
		err := r.Release(ctx)
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("deliveries held for agents that can be called are not released yet; it is tried again",
				logging.About(logging.Postgres), "error", err)
		}
		timer := time.NewTimer(r.Again)
		again := timer.C
		if err == nil && !asked {
			again = nil
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.wake:
			asked = true
		case <-ticks: // asked stays: what was asked for has its second round
		case <-again:
			asked = err != nil
		}
		timer.Stop()
	}
}

// Release makes one round.
func (r *Releaser) Release(ctx context.Context) error {
	n, tasks, err := r.Ledger.ReleaseEnabled(ctx, r.Disabled)
	r.Dispatcher.Dispatch(ctx, tasks)
	if n > 0 {
		r.Logger.Info("deliveries whose agents are enabled are released", "released", n)
	}
	return errors.Join(err, r.releaseCallable(ctx))
}

// releaseCallable does what MarkCallable asked for. What fails is left for the next round.
func (r *Releaser) releaseCallable(ctx context.Context) error {
	r.mu.Lock()
	agents := slices.Collect(maps.Keys(r.callable))
	r.mu.Unlock()
	total := 0
	defer func() {
		if total > 0 {
			r.Logger.Info("deliveries whose agents the servers file says how to call are released", "released", total)
		}
	}()
	for _, a := range agents {
		n, tasks, err := r.releaseHeld(ctx, a)
		r.Dispatcher.Dispatch(ctx, tasks)
		total += n
		if err != nil {
			return fmt.Errorf("release deliveries of an agent in the servers file: %w", err)
		}
		r.mu.Lock()
		if r.callable[a]--; r.callable[a] <= 0 {
			delete(r.callable, a)
		}
		r.mu.Unlock()
	}
	return nil
}

// releaseHeld releases what is held of one agent. It looks first whether the agent has a row, since ReleaseHeld would
// make one.
func (r *Releaser) releaseHeld(ctx context.Context, a store.Agent) (released int, tasks []store.Task, err error) {
	row, err := r.Ledger.AgentRow(ctx, a)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, nil, nil
	case err != nil || row.Open[store.Held] == 0:
		return 0, nil, err
	}
	return r.Ledger.ReleaseHeld(ctx, a, callableReasons...)
}
