package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// upkeepInterval is how often partitions and expiry are looked after.
const upkeepInterval = time.Minute

// SweepLedger is the store as the sweeper needs it.
type SweepLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	ExpireLeases(ctx context.Context, limit, attempts int) (int, error)
	Expire(ctx context.Context, age time.Duration, limit int) (int, error)
	Release(ctx context.Context, chains []uint64, limit int) (int, error)
	Due(ctx context.Context, limit int) ([]store.Task, error)
	Backlog(ctx context.Context, limit int) ([]store.Task, error)
	Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]store.Task, error)
	Redispatch(ctx context.Context, t store.Task) (store.Task, bool, error)
	EnsurePartitions(ctx context.Context, ahead int) (int, error)
}

// SweeperConfig makes a Sweeper.
type SweeperConfig struct {
	Ledger     SweepLedger
	Dispatcher *Dispatcher
	Chains     []uint64 // chains with an RPC URL: what was held for want of one is released
	Attempts   int      // a delivery has; a lease that runs out on the last one ends it
	Logger     *slog.Logger

	// Expiry is the age at which what is not final becomes dead (expired). Default 30 days.
	Expiry time.Duration

	Interval time.Duration // between rounds; default 5 s
	Late     time.Duration // how late a task may be before Redis is asked for it; default 15 s
	Batch    int           // rows per statement; default 500
}

// Sweeper finds what the fast path lost: leases of dead workers, waits that are over, tasks that Redis does not have any
// more, agents with a backlog and a free place. One process at a time does it, by an advisory lock; it is quiet when there
// is nothing to do.
type Sweeper struct{ SweeperConfig }

// NewSweeper checks the configuration.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Ledger == nil || cfg.Dispatcher == nil {
		return nil, errors.New("delivery: a sweeper needs a ledger and a dispatcher")
	}
	if cfg.Attempts < 1 {
		return nil, errors.New("delivery: a sweeper needs the number of attempts")
	}
	if cfg.Expiry <= 0 {
		cfg.Expiry = 30 * 24 * time.Hour
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 5 * time.Second
	}
	if cfg.Late <= 0 {
		cfg.Late = 15 * time.Second
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 500
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Sweeper{cfg}, nil
}

// Run sweeps until the context ends. The first round comes at once: a restart may have lost the queue.
func (s *Sweeper) Run(ctx context.Context) {
	ticker := time.NewTicker(s.Interval)
	defer ticker.Stop()
	upkeep := time.Time{}
	for {
		if err := s.round(ctx, &upkeep); err != nil && ctx.Err() == nil {
			s.Logger.Warn("sweep failed, the next round tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Sweeper) round(ctx context.Context, upkeep *time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := s.Ledger.Lead(ctx, func(ctx context.Context) error {
		if time.Since(*upkeep) > upkeepInterval {
			if err := s.upkeep(ctx); err != nil {
				return err
			}
			*upkeep = time.Now()
		}
		return s.Sweep(ctx)
	})
	return err
}

// upkeep is what need not be done each round: this and the next weeks' partitions, and deliveries that are too old.
func (s *Sweeper) upkeep(ctx context.Context) error {
	if _, err := s.Ledger.EnsurePartitions(ctx, 4); err != nil {
		return err
	}
	expired, err := s.Ledger.Expire(ctx, s.Expiry, s.Batch)
	if expired > 0 {
		s.Logger.Info("deliveries expired", "count", expired, "after", s.Expiry)
	}
	return err
}

// Sweep does one round's work.
func (s *Sweeper) Sweep(ctx context.Context) error {
	crashed, err := s.Ledger.ExpireLeases(ctx, s.Batch, s.Attempts)
	if err != nil {
		return err
	}
	released, err := s.Ledger.Release(ctx, s.Chains, s.Batch)
	if err != nil {
		return err
	}
	due, err := s.Ledger.Due(ctx, s.Batch)
	if err != nil {
		return err
	}
	backlog, err := s.Ledger.Backlog(ctx, s.Batch)
	if err != nil {
		return err
	}
	s.Dispatcher.Dispatch(ctx, append(due, backlog...))
	lost, err := s.recoverLost(ctx)
	if crashed+released+len(due)+len(backlog)+lost > 0 {
		s.Logger.Info("swept", "leases_expired", crashed, "released", released, "due", len(due), "backlog", len(backlog), "lost_by_redis", lost)
	}
	return err
}

// stuck is how late a hand-out must be before a task that Redis calls running does not count any more. A running task claims at
// once; asynq is known to lose the lease of one and to call it running for ever.
const stuck = 5 * time.Minute

// recoverLost walks the overdue hand-outs and gives those a new task that Redis does not hold any more.
func (s *Sweeper) recoverLost(ctx context.Context) (lost int, err error) {
	active := 0
	lost, err = s.redispatch(ctx, s.Late, func(p queue.Place) bool {
		if p == queue.Active {
			active++
		}
		return p == queue.Nowhere
	})
	if err != nil || active == 0 {
		return lost, err
	}
	more, err := s.redispatch(ctx, max(stuck, 2*s.Late), func(p queue.Place) bool { return p != queue.Pending })
	return lost + more, err
}

// redispatch gives a new task to each hand-out that is late and whose old task is lost, by where Redis has it.
func (s *Sweeper) redispatch(ctx context.Context, late time.Duration, isLost func(queue.Place) bool) (lost int, err error) {
	after := uuid.Nil
	for {
		tasks, err := s.Ledger.Overdue(ctx, late, after, s.Batch)
		if err != nil {
			return lost, err
		}
		for _, t := range tasks {
			after = t.ID
			place, err := s.Dispatcher.lanes.Find(laned(t))
			if err != nil {
				return lost, fmt.Errorf("compare with Redis: %w", err)
			}
			if !isLost(place) {
				continue
			}
			again, ok, err := s.Ledger.Redispatch(ctx, t)
			if err != nil {
				return lost, err
			}
			if ok {
				lost += s.Dispatcher.Dispatch(ctx, []store.Task{again})
			}
		}
		if len(tasks) < s.Batch {
			return lost, nil
		}
	}
}
