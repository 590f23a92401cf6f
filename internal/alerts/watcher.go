package alerts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
)

// WatcherLedger is the store as a Watcher needs it.
type WatcherLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	LookForNews(ctx context.Context, cfg store.LookConfig) (disabled []store.Agent, told int, err error)
}

// WatcherConfig makes a Watcher.
type WatcherConfig struct {
	Ledger WatcherLedger
	Logger *slog.Logger

	// Tell is called when there is something in the outbox. Nil: nobody is told of anything (no HERALD_ALERT_URL); what
	// happens is noted all the same, so that a URL which is set later hears of what happens then.
	Tell func()
	// DisableAfter is how long an agent may fail every call before it is disabled. 0: for ever.
	DisableAfter time.Duration

	// FailingAfter is how long every call of an agent fails, at least two of them, before that is news. Default 1 min:
	// by then the waits of the schedule have had a delivery tried five times.
	FailingAfter time.Duration
	// Pause is the least time between two alerts of one kind about the deliveries of one agent. Default 5 min.
	Pause    time.Duration
	Interval time.Duration // between looks; default 10 s

	Now func() time.Time // default time.Now
}

const (
	defaultInterval = 10 * time.Second
	// lookEvery is how often within an interval it is asked whether a look is due: the lead is the reconciler's, too, and
	// may be taken.
	lookEvery   = 4
	lookTimeout = 30 * time.Second
	// keepAlerts is how long what was posted, or given up, stays in the outbox for people to look at.
	keepAlerts = 30 * 24 * time.Hour
)

// Watcher looks for news on the worker that leads.
type Watcher struct {
	WatcherConfig

	last time.Time // when this process last looked, or failed to
}

// NewWatcher checks the configuration.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("alerts: a watcher needs a ledger")
	}
	if cfg.DisableAfter < 0 {
		return nil, errors.New("alerts: agents cannot be disabled before they fail")
	}
	cfg.FailingAfter = cmp.Or(cfg.FailingAfter, time.Minute)
	cfg.Pause = cmp.Or(cfg.Pause, 5*time.Minute)
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Watcher{WatcherConfig: cfg}, nil
}

// Run looks until the context ends. It asks between the moments at which a reconciler and a retention that were started
// with it want the lead (every 5 s, and half of that later).
func (w *Watcher) Run(ctx context.Context) {
	timer := time.NewTimer(w.Interval / lookEvery / 2)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(w.Interval / lookEvery)
		}
		if w.Now().Sub(w.last) < w.Interval {
			continue
		}
		if err := w.LeadAndLook(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Warn("looking for what operators are told of failed; the next look tries again",
				logging.About(logging.Postgres), "error", err)
		}
	}
}

// LeadAndLook looks once, unless another process leads just now.
func (w *Watcher) LeadAndLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	led, err := w.Ledger.Lead(ctx, w.Look)
	if led || err != nil {
		w.last = w.Now()
	}
	return err
}

// Look looks once.
func (w *Watcher) Look(ctx context.Context) error {
	look := store.LookConfig{FailingAfter: w.FailingAfter, DisableAfter: w.DisableAfter, Pause: w.Pause, Keep: keepAlerts}
	if w.Tell != nil {
		look.Compose = composePayload
	}
	disabled, told, err := w.Ledger.LookForNews(ctx, look)
	for _, a := range disabled {
		w.Logger.Warn("an agent is disabled: every call failed for too long (HERALD_DISABLE_AFTER). "+
			"`worker agent enable` releases its deliveries", "agent", fmt.Sprintf("%d:%s", a.ChainID, a.ID),
			"after", w.DisableAfter)
	}
	if told > 0 && w.Tell != nil {
		w.Tell()
	}
	return err
}
