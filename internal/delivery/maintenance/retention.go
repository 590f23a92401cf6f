package maintenance

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/retention"
)

// RetentionLedger is the part of the ledger that a Retention uses.
type RetentionLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	Expire(ctx context.Context, age time.Duration, limit int) (int, error)
}

// OldData deletes data that is no longer kept (retention.Store).
type OldData interface {
	EnsurePartitions(ctx context.Context, ahead int) (int, error)
	DropEvents(ctx context.Context, limit int) (int, error)
	DropPartitions(ctx context.Context, age time.Duration) (int, error)
	Retain(ctx context.Context, age time.Duration, limit int) (int, error)
	DropAgentHours(ctx context.Context, age time.Duration, limit int) (int, error)
}

// RetentionConfig configures a Retention.
type RetentionConfig struct {
	Ledger  RetentionLedger
	OldData OldData
	Logger  *slog.Logger

	// CountDead counts expired deliveries, for metrics. nil: nothing counts them.
	CountDead func(why outcome.Reason, n int)

	// Expiry is the age at which a delivery that is not final becomes dead (expired). Default 30 days.
	Expiry time.Duration
	// KeepFinal is how long the job, result and attempts of a final delivery are kept. It must be at least Expiry. 0,
	// the default: for ever.
	KeepFinal time.Duration

	Interval time.Duration // between two checks whether a round is due; default 5 s
	Batch    int           // rows per statement; default 500

	Now func() time.Time // default time.Now
}

const (
	retentionPause = time.Minute // between two rounds of one process, if the earlier round left no work
	weeksAhead     = 4           // partitions created in advance

	// workTime is how long a round may start batches. During the round, the process holds the leader lock
	// (Ledger.Lead). The reconciler requests that lock half a defaultInterval after the retention (Run), so workTime is
	// shorter than that.
	workTime   = 2 * time.Second
	eventBatch = 10_000 // rows of delivery_events deleted per statement; many, because each outcome adds one

	// hoursBatch times RetentionConfig.Batch is the largest number of rows of agent_hours that one statement deletes.
	// It is larger than for other tables, because there is a row for each agent and hour.
	hoursBatch = 10
)

// Retention creates the partitions of the coming weeks, expires deliveries that are too old, and deletes the data of
// old final ones.
type Retention struct {
	RetentionConfig

	last time.Time // when this process last completed a round, or failed; zero: a round is due
	more bool      // Apply reached workTime before all work was done, so the next round is due at once
}

// NewRetention validates the configuration and sets the defaults.
func NewRetention(cfg RetentionConfig) (*Retention, error) {
	if cfg.Ledger == nil || cfg.OldData == nil {
		return nil, errors.New("maintenance: the retention needs a ledger and its old data")
	}
	cfg.Expiry = cmp.Or(cfg.Expiry, 30*24*time.Hour)
	if cfg.KeepFinal != 0 && cfg.KeepFinal < cfg.Expiry {
		return nil, errors.New("maintenance: the retention must be at least the expiry, or attempts of open " +
			"deliveries would be dropped")
	}
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	cfg.Batch = cmp.Or(cfg.Batch, defaultBatch)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.CountDead == nil {
		cfg.CountDead = func(outcome.Reason, int) {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Retention{RetentionConfig: cfg}, nil
}

// Run checks after each Interval whether a round is due, and does it, until the context ends. A round is due a minute
// after a complete or failed one, or at the next check if the last one left work. The checks are half an interval after
// those of a reconciler that was started at the same time, so that the two do not request the lock together.
func (r *Retention) Run(ctx context.Context) {
	_ = loop.Pause(ctx, r.Interval/2)
	for range loop.Every(ctx, r.Interval) {
		if r.Now().Sub(r.last) < retentionPause {
			continue
		}
		if err := r.leadAndApply(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn("retention failed; it is tried again in a minute", logging.About(logging.Postgres),
				"error", err)
		}
	}
}

// leadAndApply does one round if it gets the leader lock (Ledger.Lead). If another process or this process' reconciler
// holds the lock at this moment, it does nothing, and the next check tries again.
func (r *Retention) leadAndApply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	led, err := r.Ledger.Lead(ctx, r.Apply)
	switch {
	case err != nil || led && !r.more:
		r.last = r.Now()
	case led:
		r.last = time.Time{}
	}
	return err
}

// Apply does the work of one round: it creates partitions, expires old deliveries, and deletes old data. Each statement
// changes at most a batch of rows and commits, so that no other transaction waits long for a lock. Apply repeats a
// statement while it returns full batches, and Expire while it ends any. Once workTime is over, it repeats none, and
// sets r.more if rows are left.
func (r *Retention) Apply(ctx context.Context) error {
	began := r.Now()
	repeat := func(batch int, change func() (int, error)) (total int, err error) {
		for {
			n, err := change()
			total += n
			if err != nil || n < batch {
				return total, err
			}
			if r.Now().Sub(began) >= workTime {
				r.more = true
				return total, nil
			}
		}
	}
	r.more = false
	if _, err := r.OldData.EnsurePartitions(ctx, weeksAhead); err != nil {
		return err
	}
	// Expire skips rows that other transactions have locked. So the batch after one that is not full may have rows too.
	expired, err := repeat(1, func() (n int, err error) {
		if n, err = r.Ledger.Expire(ctx, r.Expiry, r.Batch); err != nil {
			n = 0 // nothing was committed
		}
		return n, err
	})
	if expired > 0 {
		r.Logger.Warn("deliveries are dead (expired): they did not end in time", "count", expired, "after", r.Expiry)
		r.CountDead(outcome.Expired, expired)
	}
	if err != nil {
		return err
	}
	if _, err := repeat(eventBatch, func() (int, error) { return r.OldData.DropEvents(ctx, eventBatch) }); err != nil {
		return err
	}
	hours := hoursBatch * r.Batch
	if _, err := repeat(hours, func() (int, error) {
		return r.OldData.DropAgentHours(ctx, retention.AgentHoursKept, hours)
	}); err != nil {
		return err
	}
	if r.KeepFinal == 0 {
		return nil
	}
	weeks, err := r.OldData.DropPartitions(ctx, r.KeepFinal)
	if err != nil {
		return err
	}
	rows, err := repeat(r.Batch, func() (int, error) { return r.OldData.Retain(ctx, r.KeepFinal, r.Batch) })
	if weeks+rows > 0 {
		r.Logger.Info("old deliveries keep id, key and status only", "deliveries", rows, "weeks_of_attempts", weeks,
			"after", r.KeepFinal)
	}
	return err
}
