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

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// ReleaserLedger is the part of the store that a Releaser uses.
type ReleaserLedger interface {
	ReleaseHeld(ctx context.Context, a erc8004.Agent,
		reasons ...outcome.Reason) (released int, tasks []ledger.Task, err error)
}

// ReleaserRecords is the part of the operator's records that a Releaser uses.
type ReleaserRecords interface {
	AgentRow(ctx context.Context, a erc8004.Agent) (records.AgentRow, error)
	ReleaseEnabled(ctx context.Context, except func(erc8004.Agent) bool) (released int, tasks []ledger.Task, err error)
}

// callableReasons are the reasons of deliveries that are held because Herald does not know the agent's endpoint or
// credential.
var callableReasons = []outcome.Reason{outcome.AuthRequired, outcome.ChainUnconfigured, outcome.GatewayUnconfigured}

// ReleaserConfig configures a Releaser.
type ReleaserConfig struct {
	Ledger     ReleaserLedger
	Records    ReleaserRecords
	Dispatcher Dispatcher
	// Disabled reports whether the servers file (HERALD_SERVERS_FILE, the operator's list of agents' endpoints)
	// disables an agent. nil: there is no servers file.
	Disabled func(erc8004.Agent) bool
	// Again is the delay of two kinds of extra rounds. After a failed round, the next one follows with this delay.
	// After a round that Wake requested, one more round follows, because a delivery that was claimed before that round
	// may become held after it. Default 1 min.
	Again time.Duration
	// Ticks requests a round with each value. nil: a round every 10 min. Such a round releases deliveries that another
	// worker held because of an older servers file, for example during a rolling restart.
	Ticks  <-chan time.Time
	Logger *slog.Logger
}

// releaseInterval is the time between two regular rounds if Ticks is nil.
const releaseInterval = 10 * time.Minute

// Releaser releases held deliveries of two kinds of agents: agents that were disabled, once neither their row in
// Postgres nor the servers file (HERALD_SERVERS_FILE) disables them, and agents whose endpoint or credential that file
// now contains (MarkCallable). It does a round when Run starts, when Wake is called, and regularly.
type Releaser struct {
	ReleaserConfig
	wake chan struct{}

	mu       sync.Mutex
	callable map[erc8004.Agent]time.Time // when MarkCallable named the agent
}

// NewReleaser validates the configuration and sets the defaults.
func NewReleaser(cfg ReleaserConfig) (*Releaser, error) {
	if cfg.Ledger == nil || cfg.Records == nil || cfg.Dispatcher == nil {
		return nil, errors.New("maintenance: a releaser needs a ledger, records and a dispatcher")
	}
	cfg.Again = cmp.Or(cfg.Again, time.Minute)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Releaser{ReleaserConfig: cfg, wake: make(chan struct{}, 1), callable: map[erc8004.Agent]time.Time{}}, nil
}

// Wake requests a round as soon as possible. It does not block.
func (r *Releaser) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // a round is requested already
	}
}

// MarkCallable makes the following rounds also release the deliveries of these agents that are held for
// callableReasons, up to the first round after the delay Again: a delivery that was claimed before the first round may
// become held after it. The caller calls it when the servers file contains a new endpoint or credential for them, and
// then calls Wake to start the first round. MarkCallable does not block.
func (r *Releaser) MarkCallable(agents []erc8004.Agent) {
	now := time.Now()
	r.mu.Lock()
	for _, a := range agents {
		r.callable[a] = now
	}
	r.mu.Unlock()
}

// Run does a round at once, and further rounds when Wake or Ticks request one or the delay Again is over, until the
// context ends.
func (r *Releaser) Run(ctx context.Context) {
	ticks := r.Ticks
	if ticks == nil {
		ticks = time.Tick(releaseInterval)
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
		case <-ticks: // asked stays true after a round that Wake requested, so its second round still follows
		case <-again:
			asked = err != nil
		}
		timer.Stop()
	}
}

// Release does one round. It releases the deliveries that were held because their agents were disabled, if the agents
// are enabled now, and the deliveries of the agents that MarkCallable named.
func (r *Releaser) Release(ctx context.Context) error {
	n, tasks, err := r.Records.ReleaseEnabled(ctx, r.Disabled)
	r.Dispatcher.Dispatch(ctx, tasks)
	if n > 0 {
		r.Logger.Info("deliveries whose agents are enabled are released", "released", n)
	}
	return errors.Join(err, r.releaseCallable(ctx))
}

// releaseCallable releases the deliveries of the agents that MarkCallable named. It returns the first error at once;
// the next round continues with the remaining agents.
func (r *Releaser) releaseCallable(ctx context.Context) error {
	began := time.Now()
	r.mu.Lock()
	agents := slices.Collect(maps.Keys(r.callable))
	r.mu.Unlock()
	total := 0
	defer func() {
		if total > 0 {
			r.Logger.Info("deliveries are released: the servers file names endpoints of their agents",
				"released", total)
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
		if began.Sub(r.callable[a]) >= r.Again {
			delete(r.callable, a)
		}
		r.mu.Unlock()
	}
	return nil
}

// releaseHeld releases the deliveries of one agent that are held for callableReasons. It returns their number and the
// tasks to enqueue. If the agent has no row or no held deliveries, it does nothing: the store's ReleaseHeld would
// create a row.
func (r *Releaser) releaseHeld(ctx context.Context, a erc8004.Agent) (released int, tasks []ledger.Task, err error) {
	row, err := r.Records.AgentRow(ctx, a)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return 0, nil, nil
	case err != nil || row.Open[outcome.Held] == 0:
		return 0, nil, err
	}
	return r.Ledger.ReleaseHeld(ctx, a, callableReasons...)
}
