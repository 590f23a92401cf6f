package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// ReconcilerLedger is the store as the reconciler needs it. It should have connections of its own: when deliveries use
// up the others, the reconciler is what is needed most.
type ReconcilerLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	Clock(ctx context.Context) (now, started time.Time, err error)
	ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error)
	Release(ctx context.Context, chains []uint64, gateway bool, limit int) (ended []store.Task, err error)
	Due(ctx context.Context, limit int) (tasks []store.Task, more bool, err error)
	Followers(ctx context.Context, from int64, limit int) ([]store.Task, error)
	Backlog(ctx context.Context, limit int) ([]store.Task, error)
	LostBefore(ctx context.Context, before time.Time, limit int) ([]store.Task, error)
	Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]store.Task, error)
	Redispatch(ctx context.Context, t store.Task) (store.Task, bool, error)
}

// Dispatcher puts tasks into Redis.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) (taken int)
}

// TaskFinder is a Dispatcher that also tells what Redis still holds.
type TaskFinder interface {
	Dispatcher
	// FindTask tells where Redis has the task of a dispatched delivery.
	FindTask(t store.Task) (queue.Location, error)
	// RedisMarker is when the Redis of today was first seen; now, if it is seen for the first time.
	RedisMarker(ctx context.Context, now time.Time) (time.Time, error)
}

// ReconcilerConfig makes a Reconciler.
type ReconcilerConfig struct {
	Ledger     ReconcilerLedger
	Dispatcher TaskFinder
	Chains     []uint64 // chains with an RPC URL: what was held for want of one is released
	Gateway    bool     // there is an Arweave gateway: the same
	Attempts   int      // a delivery has; a lease that runs out on the last one ends it
	Logger     *slog.Logger

	Interval time.Duration // between rounds; default 5 s
	Late     time.Duration // how late a task may be before Redis is asked for it; default 15 s
	Batch    int           // rows per statement; default 500

	// Grace is how long after Postgres was lost no lease is taken back: workers record what they know first. Default 60
	// s; negative: none, for a database that nobody else uses.
	Grace time.Duration

	Now func() time.Time // default time.Now
}

// Reconciler finds what the fast path lost: leases of dead workers, waits that are over, tasks that Redis does not have
// any more, agents with a backlog and nothing dispatched. It is quiet when there is nothing to do.
type Reconciler struct {
	ReconcilerConfig

	postgresLost time.Time // when Postgres was last found away or slow
	redisMarker  time.Time // of the Redis that this process last compared with
	rounds       int       // of Reconcile
}

// NewReconciler checks the configuration.
func NewReconciler(cfg ReconcilerConfig) (*Reconciler, error) {
	if cfg.Ledger == nil || cfg.Dispatcher == nil {
		return nil, errors.New("maintenance: a reconciler needs a ledger and a dispatcher")
	}
	if cfg.Attempts < 1 {
		return nil, errors.New("maintenance: a reconciler needs the number of attempts")
	}
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	cfg.Late = cmp.Or(cfg.Late, 15*time.Second)
	cfg.Batch = cmp.Or(cfg.Batch, defaultBatch)
	cfg.Grace = cmp.Or(cfg.Grace, time.Minute)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reconciler{ReconcilerConfig: cfg}, nil
}

const (
	defaultInterval = 5 * time.Second
	defaultBatch    = 500
	roundTimeout    = time.Minute

	// redisTimeout bounds one question to Redis.
	redisTimeout = 5 * time.Second

	// slowPostgres is how long reading the clock and taking back leases may take. It is shorter than any lease outlasts
	// its call: what was found before Postgres froze for longer is not acted on after it woke up, when every lease
	// looks as if it had run out.
	slowPostgres = 2 * time.Second

	// stuckAfter is how late a dispatched delivery must be before a task that Redis calls running does not count any
	// more. A running task claims at once; asynq is known to lose the lease of one and to call it running for ever.
	stuckAfter = 5 * time.Minute
)

// Run reconciles until the context ends. The first round comes at once: a restart may have lost the queue.
func (r *Reconciler) Run(ctx context.Context) {
	ticker := time.NewTicker(r.Interval)
	defer ticker.Stop()
	for {
		if err := r.LeadAndReconcile(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn("reconciling failed; the next round tries again", logging.About(failedService(err)),
				"error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// LeadAndReconcile does one round if no other process does.
func (r *Reconciler) LeadAndReconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	began := r.Now()
	_, err := r.Ledger.Lead(ctx, func(ctx context.Context) error {
		if r.Now().Sub(began) > slowPostgres {
			r.postgresLost = r.Now() // taking the lock never waits for another process, so Postgres hung
		}
		return r.Reconcile(ctx)
	})
	if err != nil && failedService(err) == logging.Postgres {
		r.postgresLost = r.Now()
	}
	return err
}

// failedService is the service that a round's error is of.
func failedService(err error) logging.Service {
	var redis *redisError
	if errors.As(err, &redis) {
		return logging.Redis
	}
	return logging.Postgres
}

// redisError is a fault of Redis, not of Postgres.
type redisError struct{ error }

func (e *redisError) Unwrap() error { return e.error }

// Reconcile does one round's work.
func (r *Reconciler) Reconcile(ctx context.Context) error {
	steady, now, err := r.isPostgresSteady(ctx)
	if err != nil {
		return err
	}

	expired, lost := 0, 0
	if steady {
		if expired, err = r.expireLeases(ctx); err != nil {
			return err
		}
	}

	released, err := r.Ledger.Release(ctx, r.Chains, r.Gateway, r.Batch)
	if err != nil {
		return err
	}
	r.Dispatcher.Dispatch(ctx, released)
	due, err := r.dispatchDue(ctx)
	if err != nil {
		return err
	}
	followers, err := r.Ledger.Followers(ctx, r.chooseClients(), r.Batch)
	if err != nil {
		return err
	}
	r.Dispatcher.Dispatch(ctx, followers)
	backlog, err := r.Ledger.Backlog(ctx, r.Batch)
	if err != nil {
		return err
	}
	r.Dispatcher.Dispatch(ctx, backlog)

	if steady {
		lost, err = r.dispatchLost(ctx, now)
	}
	if expired+len(released)+due+len(followers)+len(backlog)+lost > 0 {
		r.Logger.Info("reconciled", "leases_expired", expired, "released", len(released), "due", due, "followers", len(followers),
			"backlog", len(backlog),
			"lost_by_redis", lost)
	}
	return err
}

// dispatchDue dispatches waits that are over, batch by batch while there are more, for at most an interval: then the next
// round begins, which looks after leases first.
func (r *Reconciler) dispatchDue(ctx context.Context) (due int, err error) {
	began := r.Now()
	for {
		tasks, more, err := r.Ledger.Due(ctx, r.Batch)
		if err != nil {
			return due, err
		}
		r.Dispatcher.Dispatch(ctx, tasks)
		due += len(tasks)
		if !more || r.Now().Sub(began) >= r.Interval {
			return due, nil
		}
	}
}

// chooseClients is where Followers begins: every other round at the first client, else anywhere, so that no number of them
// hides the others.
func (r *Reconciler) chooseClients() int64 {
	if r.rounds++; r.rounds%2 == 1 {
		return math.MinInt64
	}
	return int64(rand.Uint64())
}

// isPostgresSteady tells whether Postgres has been there for long enough that every living worker could record what it
// knows.
func (r *Reconciler) isPostgresSteady(ctx context.Context) (steady bool, now time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, slowPostgres)
	defer cancel()
	now, started, err := r.Ledger.Clock(ctx)
	if err != nil {
		return false, now, err
	}
	return now.Sub(started) >= r.Grace && r.Now().Sub(r.postgresLost) >= r.Grace, now, nil
}

func (r *Reconciler) expireLeases(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, slowPostgres)
	defer cancel()
	n, dead, err := r.Ledger.ExpireLeases(ctx, r.Batch, r.Attempts)
	if dead > 0 {
		r.Logger.Warn("deliveries are dead (outcome_unknown): their worker ended in each of their attempts",
			"count", dead)
	}
	return n, err
}

// dispatchLost gives new tasks to dispatched deliveries that Redis does not hold any more: at once when its marker
// tells that it lost everything, else to those that are late.
func (r *Reconciler) dispatchLost(ctx context.Context, now time.Time) (lost int, err error) {
	if lost, err = r.dispatchAllLost(ctx, now); err != nil {
		return lost, err
	}
	late, err := r.dispatchLate(ctx)
	return lost + late, err
}

// dispatchAllLost dispatches again what was dispatched before the Redis of today began.
func (r *Reconciler) dispatchAllLost(ctx context.Context, now time.Time) (lost int, err error) {
	ask, cancel := context.WithTimeout(ctx, redisTimeout)
	marker, err := r.Dispatcher.RedisMarker(ask, now)
	cancel()
	if err != nil {
		return 0, &redisError{fmt.Errorf("compare with Redis: %w", err)}
	}
	if marker.Equal(r.redisMarker) {
		return 0, nil
	}
	for {
		tasks, err := r.Ledger.LostBefore(ctx, marker, r.Batch)
		if err != nil {
			return lost, err
		}
		if r.Dispatcher.Dispatch(ctx, tasks) < len(tasks) {
			return lost, nil // Redis is away again; what it did not take is late by the next round
		}
		lost += len(tasks)
		if len(tasks) < r.Batch {
			r.redisMarker = marker
			return lost, nil
		}
	}
}

// dispatchLate walks the overdue deliveries and gives those a new task that Redis does not hold any more, or will not
// run soon.
func (r *Reconciler) dispatchLate(ctx context.Context) (lost int, err error) {
	active := 0
	lost, err = r.redispatch(ctx, r.Late, func(p queue.Location) bool {
		if p == queue.Active {
			active++
		}
		return p == queue.Nowhere || p == queue.Postponed
	})
	if err != nil || active == 0 {
		return lost, err
	}
	more, err := r.redispatch(ctx, max(stuckAfter, 2*r.Late), func(p queue.Location) bool { return p != queue.Pending })
	return lost + more, err
}

// redispatch gives a new task to each dispatched delivery that is late and whose old task is lost, by where Redis has
// it.
func (r *Reconciler) redispatch(ctx context.Context, late time.Duration,
	isLost func(queue.Location) bool) (lost int, err error) {
	after := uuid.Nil
	for {
		tasks, err := r.Ledger.Overdue(ctx, late, after, r.Batch)
		if err != nil {
			return lost, err
		}
		for _, t := range tasks {
			after = t.ID
			place, err := r.Dispatcher.FindTask(t)
			if err != nil {
				return lost, &redisError{fmt.Errorf("compare with Redis: %w", err)}
			}
			if !isLost(place) {
				continue
			}
			again, ok, err := r.Ledger.Redispatch(ctx, t)
			if err != nil {
				return lost, err
			}
			if ok {
				lost += r.Dispatcher.Dispatch(ctx, []store.Task{again})
			}
		}
		if len(tasks) < r.Batch {
			return lost, nil
		}
	}
}
