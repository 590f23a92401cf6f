package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// SweepLedger is the store as the sweeper needs it. It should have connections of its own: when deliveries use up the others,
// the sweep is what is needed most.
type SweepLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	Clock(ctx context.Context) (now, started time.Time, err error)
	ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error)
	Expire(ctx context.Context, age time.Duration, limit int) (int, error)
	Release(ctx context.Context, chains []uint64, gateway bool, limit int) (int, error)
	Due(ctx context.Context, limit int) ([]store.Task, error)
	Backlog(ctx context.Context, limit int) ([]store.Task, error)
	LostBefore(ctx context.Context, before time.Time, limit int) ([]store.Task, error)
	Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]store.Task, error)
	Redispatch(ctx context.Context, t store.Task) (store.Task, bool, error)
	EnsurePartitions(ctx context.Context, ahead int) (int, error)
	DropPartitions(ctx context.Context, age time.Duration) (int, error)
	Retain(ctx context.Context, age time.Duration, limit int) (int, error)
}

// SweeperConfig makes a Sweeper.
type SweeperConfig struct {
	Ledger     SweepLedger
	Dispatcher *Dispatcher
	Chains     []uint64 // chains with an RPC URL: what was held for want of one is released
	Gateway    bool     // there is an Arweave gateway: the same
	Attempts   int      // a delivery has; a lease that runs out on the last one ends it
	Logger     *slog.Logger

	// Expiry is the age at which what is not final becomes dead (expired). Default 30 days.
	Expiry time.Duration
	// Retention is how long job, result and attempts of final deliveries are kept; at least Expiry. Default 0: for ever.
	Retention time.Duration

	Interval time.Duration // between rounds; default 5 s
	Late     time.Duration // how late a task may be before Redis is asked for it; default 15 s
	Batch    int           // rows per statement; default 500

	// Grace is how long after Postgres was lost nothing is taken from a worker that holds it: workers record what they know first.
	// Default 60 s; negative: none, for a database that nobody else uses.
	Grace time.Duration

	Now func() time.Time // default time.Now
}

// Sweeper finds what the fast path lost: leases of dead workers, waits that are over, tasks that Redis does not have any
// more, agents with a backlog and a free place. One process at a time does it, by an advisory lock; it is quiet when there
// is nothing to do.
type Sweeper struct {
	SweeperConfig

	lost   time.Time // when Postgres was last found away or slow
	upkept time.Time
	marker time.Time // of the Redis that this process last saw
}

// NewSweeper checks the configuration.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Ledger == nil || cfg.Dispatcher == nil {
		return nil, errors.New("delivery: a sweeper needs a ledger and a dispatcher")
	}
	if cfg.Attempts < 1 {
		return nil, errors.New("delivery: a sweeper needs the number of attempts")
	}
	setDefault(&cfg.Expiry, 30*24*time.Hour)
	if cfg.Retention != 0 && cfg.Retention < cfg.Expiry {
		return nil, errors.New("delivery: the retention must be at least the expiry, or attempts of open deliveries would be dropped")
	}
	setDefault(&cfg.Interval, 5*time.Second)
	setDefault(&cfg.Late, 15*time.Second)
	if cfg.Grace == 0 {
		cfg.Grace = time.Minute
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 500
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Sweeper{SweeperConfig: cfg}, nil
}

func setDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

const (
	roundTimeout   = time.Minute
	upkeepInterval = time.Minute // how often partitions, expiry and retention are looked after

	// slow is how long a statement of the sweep may take. It is shorter than any lease outlasts its call: what was found before
	// Postgres froze for longer is not acted on after it woke up, when every lease looks as if it had run out.
	slow = 2 * time.Second
)

// Run sweeps until the context ends. The first round comes at once: a restart may have lost the queue.
func (s *Sweeper) Run(ctx context.Context) {
	ticker := time.NewTicker(s.Interval)
	defer ticker.Stop()
	for {
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("sweep failed, the next round tries again", logging.About(whoFailed(err)), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Sweeper) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	began := s.Now()
	_, err := s.Ledger.Lead(ctx, func(ctx context.Context) error {
		if s.Now().Sub(began) > slow {
			s.lost = s.Now() // Postgres let us wait for the lock, though it waits for nobody
		}
		err := s.Sweep(ctx)
		if err != nil || s.Now().Sub(s.upkept) < upkeepInterval {
			return err
		}
		s.upkept = s.Now()
		if err := s.upkeep(ctx); err != nil {
			s.Logger.Warn("upkeep failed, it is tried again in a minute", logging.About(logging.Postgres), "error", err)
		}
		return nil
	})
	if err != nil && whoFailed(err) == logging.Postgres {
		s.lost = s.Now()
	}
	return err
}

// whoFailed is the service that a round's error is of.
func whoFailed(err error) logging.Service {
	var redis *redisError
	if errors.As(err, &redis) {
		return logging.Redis
	}
	return logging.Postgres
}

// redisError is a fault of Redis, not of Postgres.
type redisError struct{ error }

func (e *redisError) Unwrap() error { return e.error }

// upkeep is what need not be done each round: this and the next weeks' partitions, and what is too old.
func (s *Sweeper) upkeep(ctx context.Context) error {
	if _, err := s.Ledger.EnsurePartitions(ctx, 4); err != nil {
		return err
	}
	expired, err := s.Ledger.Expire(ctx, s.Expiry, s.Batch)
	if err != nil {
		return err
	}
	if expired > 0 {
		s.Logger.Warn("deliveries are dead (expired): they did not end in time", "count", expired, "after", s.Expiry)
	}
	if s.Retention == 0 {
		return nil
	}
	weeks, err := s.Ledger.DropPartitions(ctx, s.Retention)
	if err != nil {
		return err
	}
	rows, err := s.Ledger.Retain(ctx, s.Retention, s.Batch)
	if weeks+rows > 0 {
		s.Logger.Info("old deliveries keep id, key and status only", "deliveries", rows, "weeks_of_attempts", weeks, "after", s.Retention)
	}
	return err
}

// Sweep does one round's work.
func (s *Sweeper) Sweep(ctx context.Context) error {
	calm, now, err := s.calm(ctx)
	if err != nil {
		return err
	}
	crashed, lost := 0, 0
	if calm {
		if crashed, err = s.expireLeases(ctx); err != nil {
			return err
		}
	}
	released, err := s.Ledger.Release(ctx, s.Chains, s.Gateway, s.Batch)
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
	if calm {
		lost, err = s.recoverLost(ctx, now)
	}
	if crashed+released+len(due)+len(backlog)+lost > 0 {
		s.Logger.Info("swept", "leases_expired", crashed, "released", released, "due", len(due), "backlog", len(backlog), "lost_by_redis", lost)
	}
	return err
}

// calm tells whether Postgres has been there for long enough that every living worker could record what it knows.
func (s *Sweeper) calm(ctx context.Context) (calm bool, now time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	now, started, err := s.Ledger.Clock(ctx)
	if err != nil {
		return false, now, err
	}
	return now.Sub(started) >= s.Grace && s.Now().Sub(s.lost) >= s.Grace, now, nil
}

func (s *Sweeper) expireLeases(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	n, dead, err := s.Ledger.ExpireLeases(ctx, s.Batch, s.Attempts)
	if dead > 0 {
		s.Logger.Warn("deliveries are dead (outcome_unknown): their worker ended in each of their attempts", "count", dead)
	}
	return n, err
}

// recoverLost gives new tasks to hand-outs that Redis does not hold any more: at once when its marker tells that it lost
// everything, else to those that are late.
func (s *Sweeper) recoverLost(ctx context.Context, now time.Time) (lost int, err error) {
	if lost, err = s.recoverAll(ctx, now); err != nil {
		return lost, err
	}
	late, err := s.recoverLate(ctx)
	return lost + late, err
}

// recoverAll hands out again what was handed out before the Redis of today began.
func (s *Sweeper) recoverAll(ctx context.Context, now time.Time) (lost int, err error) {
	ask, cancel := context.WithTimeout(ctx, enqueueTimeout)
	born, err := s.Dispatcher.lanes.Marker(ask, now)
	cancel()
	if err != nil {
		return 0, &redisError{fmt.Errorf("compare with Redis: %w", err)}
	}
	if born.Equal(s.marker) {
		return 0, nil
	}
	for {
		tasks, err := s.Ledger.LostBefore(ctx, born, s.Batch)
		if err != nil {
			return lost, err
		}
		if s.Dispatcher.Dispatch(ctx, tasks) < len(tasks) {
			return lost, nil // Redis is away again; what is handed out is late by the next round
		}
		lost += len(tasks)
		if len(tasks) < s.Batch {
			s.marker = born
			return lost, nil
		}
	}
}

// stuck is how late a hand-out must be before a task that Redis calls running does not count any more. A running task claims at
// once; asynq is known to lose the lease of one and to call it running for ever.
const stuck = 5 * time.Minute

// recoverLate walks the overdue hand-outs and gives those a new task that Redis does not hold any more, or will not run soon.
func (s *Sweeper) recoverLate(ctx context.Context) (lost int, err error) {
	active := 0
	lost, err = s.redispatch(ctx, s.Late, func(p queue.Place) bool {
		if p == queue.Active {
			active++
		}
		return p == queue.Nowhere || p == queue.Postponed
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
				return lost, &redisError{fmt.Errorf("compare with Redis: %w", err)}
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
