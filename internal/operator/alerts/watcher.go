package alerts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
)

// WatcherConfig configures a Watcher.
type WatcherConfig struct {
	Ledger  *store.Store
	Records *records.Store
	Logger  *slog.Logger

	// Wake is called when the outbox has new alerts. If it is nil (no HERALD_ALERT_URL), no alerts are written. The
	// news are still recorded as seen, so that a URL that is set later receives only later news.
	Wake func()
	// DisableAfter is how long all calls of an agent may fail before the agent is disabled. 0: it is never disabled.
	DisableAfter time.Duration

	Interval time.Duration // between two looks; default 10 s
}

const (
	defaultInterval = 10 * time.Second
	// failingAfter is how long all calls of an agent, at least two, must fail before an alert is written: by then, the
	// retry schedule has tried a delivery five times.
	failingAfter = time.Minute
	// alertPause is the least time between two alerts of one kind about one agent's deliveries.
	alertPause = 5 * time.Minute
	// lookEvery is how many times per interval Run checks whether a look is due. The first attempt may fail because the
	// reconciler, which uses the same lock, leads at that moment.
	lookEvery   = 4
	lookTimeout = 30 * time.Second
	// keepAlerts is how long alerts stay in the outbox, for people to read, after they were posted or given up.
	keepAlerts = 30 * 24 * time.Hour
)

// Watcher looks for news on the worker that leads.
type Watcher struct {
	WatcherConfig

	last  time.Time     // when this process last looked or failed to look
	after erc8004.Agent // the last agent that it read (records.Looked)
}

// NewWatcher validates the configuration and sets the defaults.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	if cfg.Ledger == nil || cfg.Records == nil {
		return nil, errors.New("alerts: a watcher needs a ledger and records")
	}
	if cfg.DisableAfter < 0 {
		return nil, errors.New("alerts: agents cannot be disabled before they fail")
	}
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Watcher{WatcherConfig: cfg}, nil
}

// Run looks for news until the context ends. A reconciler and a retention that start with it request the lead every 5
// s, and half of that later. Run requests it between these moments.
func (w *Watcher) Run(ctx context.Context) {
	_ = loop.Pause(ctx, w.Interval/lookEvery/2)
	for range loop.Every(ctx, w.Interval/lookEvery) {
		if time.Since(w.last) < w.Interval {
			continue
		}
		if err := w.LeadAndLook(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Warn("checking for alerts failed; the next round tries again",
				logging.About(logging.Postgres), "error", err)
		}
	}
}

// LeadAndLook looks for news once, unless another process leads at this moment.
func (w *Watcher) LeadAndLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	led, err := w.Ledger.Lead(ctx, w.Look)
	if led || err != nil {
		w.last = time.Now()
	}
	return err
}

// Look looks for news once. LeadAndLook calls it while this process leads.
func (w *Watcher) Look(ctx context.Context) error {
	look := records.LookConfig{FailingAfter: failingAfter, DisableAfter: w.DisableAfter,
		Pause: alertPause, Keep: keepAlerts, After: w.after}
	if w.Wake != nil {
		look.Compose = composePayload
	}
	looked, err := w.Records.LookForNews(ctx, look)
	w.after = looked.Last
	for _, a := range looked.Disabled {
		w.Logger.Warn("an agent is disabled: every call failed for too long (HERALD_DISABLE_AFTER). "+
			"`worker agent enable` releases its deliveries", "agent", a.String(),
			"after", w.DisableAfter)
	}
	if looked.Inserted > 0 && w.Wake != nil {
		w.Wake()
	}
	return err
}
