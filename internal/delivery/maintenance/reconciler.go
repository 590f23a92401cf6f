package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// ReconcilerLedger is the part of the store that the reconciler uses. It should have its own connections, because the
// reconciler is needed most when deliveries occupy all others.
type ReconcilerLedger interface {
	Lead(ctx context.Context, do func(context.Context) error) (bool, error)
	Clock(ctx context.Context) (now, started time.Time, err error)
	ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error)
	Release(ctx context.Context, chains []uint64, gateway bool, limit int) (ended []ledger.Task, err error)
	Due(ctx context.Context, limit int) (tasks []ledger.Task, more bool, err error)
	IgnoreOrder(ctx context.Context, limit int) ([]ledger.Task, error)
	Backlog(ctx context.Context, limit int) ([]ledger.Task, error)
	LostBefore(ctx context.Context, before time.Time, limit int) ([]ledger.Task, error)
	Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]ledger.Task, error)
	Redispatch(ctx context.Context, t ledger.Task) (ledger.Task, bool, error)
}

// Dispatcher enqueues tasks in Redis, and removes from Redis the tasks that their deliveries no longer need
// (ledger.Task.Ended). It stops at the first task that Redis does not accept, and returns how many tasks precede that
// one. The deliveries of the remaining tasks stay dispatched in Postgres, until the reconciler finds that Redis does
// not have their tasks.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []ledger.Task) (taken int)
}

// TaskFinder is a Dispatcher that can also look up tasks in Redis.
type TaskFinder interface {
	Dispatcher
	// FindTask returns where the task is in Redis (queue.Location): whether Redis has it, and in which state.
	FindTask(t ledger.Task) (queue.Location, error)
	// RedisMarker returns the time since which this Redis has kept Herald's tasks. Tasks that were enqueued earlier are
	// lost. If Redis has no such marker, RedisMarker stores now as the marker and returns it.
	RedisMarker(ctx context.Context, now time.Time) (time.Time, error)
}

// ReconcilerConfig configures a Reconciler.
type ReconcilerConfig struct {
	Ledger     ReconcilerLedger
	Dispatcher TaskFinder
	Chains     []uint64 // chains with an RPC URL: deliveries held because that URL was missing are released
	Gateway    bool     // ARWEAVE_GATEWAY is set: deliveries held because this setting was missing are released
	Attempts   int      // attempts per delivery (expireLeases)
	Logger     *slog.Logger

	// CountDead counts dead deliveries in metrics: their workers recorded no outcome. nil: nothing counts them.
	CountDead func(why outcome.Reason, n int)

	Interval time.Duration // between rounds; default 5 s
	Late     time.Duration // how overdue a delivery must be before its task is looked up in Redis; default 15 s
	Batch    int           // rows per statement; default 500

	// Grace is how long after an outage of Postgres the reconciler expires no lease and replaces no lost task, so that
	// workers can first record the outcomes that they have. Default 60 s; negative: none, for a database that no other
	// process uses.
	Grace time.Duration

	// Pooler asks Postgres for a sign of life through the pooler that workers use, because Ledger reaches Postgres
	// directly, also while the pooler is unavailable. nil: workers use no pooler.
	Pooler func(context.Context) error

	Now func() time.Time // default time.Now
}

// Reconciler dispatches waiting deliveries that are due, and releases held ones (releaseHeld), in each process. In one
// process at a time, it also repairs stuck deliveries: it expires the leases of dead workers, replaces tasks that Redis
// lost, and dispatches from backlogs of agents below their dispatch limit. It logs nothing if it finds nothing.
type Reconciler struct {
	ReconcilerConfig

	postgresLost time.Time // when Postgres or the pooler was last found unavailable or slow
	clockRead    time.Time // when isPostgresSteady last read the clock of Postgres
	clock        time.Time // the time that it showed
	clockJumped  time.Time // when isPostgresSteady last found that the clock had jumped ahead
	released     time.Time // when releaseHeld last found less than a batch
	redisMarker  time.Time // the RedisMarker before which all lost tasks have been replaced
	late, stuck  uuid.UUID // the deliveries after which the next round continues to look up tasks (dispatchLate)
}

// NewReconciler validates the configuration and sets the defaults.
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
	if cfg.CountDead == nil {
		cfg.CountDead = func(outcome.Reason, int) {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reconciler{ReconcilerConfig: cfg}, nil
}

const (
	defaultInterval = 5 * time.Second
	defaultBatch    = 500
	roundTimeout    = time.Minute
	releasePause    = time.Minute // between two searches for held deliveries that can be released

	// One statement lists up to overdueBatches times ReconcilerConfig.Batch overdue tasks. This number is large,
	// because the statement reads all dispatched deliveries. With many agents, these are hundreds of thousands.
	overdueBatches = 20

	// redisTimeout bounds one call to Redis.
	redisTimeout = 5 * time.Second

	// slowPostgres is the timeout of the statements that read the clock and expire leases. While Postgres is frozen,
	// leases run out although their workers live, because the workers cannot record their outcomes. A statement that
	// waits during the freeze is cancelled after slowPostgres. Otherwise it would expire these leases when Postgres
	// continues. A lease is longer than its call by HERALD_LEASE_MARGIN (default 1 min). A freeze shorter than
	// slowPostgres does not use up that margin.
	slowPostgres = 2 * time.Second

	// jumpGrace is ReconcilerConfig.Grace after a jump of Postgres' clock, also for a database that no other process
	// uses: the worker itself runs deliveries.
	jumpGrace = time.Minute

	// stuckAfter is how overdue a dispatched delivery must be before its task counts as lost although it is active in
	// asynq. A running task claims its delivery immediately, but asynq sometimes loses the lease of a task and then
	// leaves the task active for ever.
	stuckAfter = 5 * time.Minute
)

// Run does a round (Round) at once and after each Interval, until the context ends. The first round in which this
// process holds the leader lock (Ledger.Lead), and Postgres is steady (isPostgresSteady), also replaces the tasks that
// Redis lost earlier.
func (r *Reconciler) Run(ctx context.Context) {
	round := func() {
		if err := r.Round(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn("reconciling failed; the next round tries again", logging.About(failedService(err)),
				"error", err)
		}
	}
	round()
	for range loop.Every(ctx, r.Interval) {
		round()
	}
}

// Round does one round: it dispatches waiting deliveries that are due, releases held ones (releaseHeld), and then, if
// this process gets the leader lock (Ledger.Lead), repairs stuck deliveries (repair).
func (r *Reconciler) Round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	err := r.askPooler(ctx)
	if err == nil {
		err = r.dispatchDue(ctx)
	}
	if err == nil {
		err = r.releaseHeld(ctx)
	}
	if err == nil {
		began := r.Now()
		_, err = r.Ledger.Lead(ctx, func(ctx context.Context) error {
			if r.Now().Sub(began) > slowPostgres {
				r.postgresLost = r.Now() // Lead does not wait for the lock, so Postgres was slow
			}
			return r.repair(ctx)
		})
	}
	if err != nil && failedService(err) == logging.Postgres {
		r.postgresLost = r.Now()
	}
	return err
}

// askPooler returns an error if workers cannot reach Postgres through their pooler.
func (r *Reconciler) askPooler(ctx context.Context) error {
	if r.Pooler == nil {
		return nil
	}
	return r.Pooler(ctx)
}

// failedService returns the service that caused a round's error: Redis for a *redisError, otherwise Postgres.
func failedService(err error) logging.Service {
	if _, ok := errors.AsType[*redisError](err); ok {
		return logging.Redis
	}
	return logging.Postgres
}

// redisError marks an error that Redis caused, not Postgres (failedService).
type redisError struct{ error }

func (e *redisError) Unwrap() error { return e.error }

// releaseHeld releases up to a batch of the deliveries that were held because a setting was missing, if this process
// has the setting. Each process calls it, because the leader may have other settings. It reads all deliveries that are
// held for a missing setting. Therefore, after it has found less than a batch, it does nothing for releasePause.
func (r *Reconciler) releaseHeld(ctx context.Context) error {
	if r.Now().Sub(r.released) < releasePause {
		return nil
	}
	released, err := r.Ledger.Release(ctx, r.Chains, r.Gateway, r.Batch)
	r.Dispatcher.Dispatch(ctx, released)
	if len(released) > 0 {
		r.Logger.Info("deliveries are released: their missing setting is now set", "released", len(released))
	}
	if err == nil && len(released) < r.Batch {
		r.released = r.Now()
	}
	return err
}

// repair does the part of a round for which the process holds the leader lock (Ledger.Lead). It dispatches deliveries
// that wait for their turn although the operator switched their agent's order off, and dispatches the agents' backlogs.
// If Postgres is steady (isPostgresSteady), it also expires leases and replaces the tasks that Redis lost.
func (r *Reconciler) repair(ctx context.Context) error {
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
	unordered, err := r.Ledger.IgnoreOrder(ctx, r.Batch)
	if err != nil {
		return err
	}
	r.Dispatcher.Dispatch(ctx, unordered)
	backlog, err := r.Ledger.Backlog(ctx, r.Batch)
	if err != nil {
		return err
	}
	r.Dispatcher.Dispatch(ctx, backlog)

	if steady {
		lost, err = r.dispatchLost(ctx, now)
	}
	if expired+len(unordered)+len(backlog)+lost > 0 {
		r.Logger.Info("reconciled", "leases_expired", expired, "order_switched_off", len(unordered),
			"backlog", len(backlog), "lost_by_redis", lost)
	}
	return err
}

// dispatchDue dispatches deliveries whose wait is over, batch by batch. It stops after r.Interval, even if more
// deliveries are due, so that the leader can expire leases first.
func (r *Reconciler) dispatchDue(ctx context.Context) error {
	due := 0
	defer func() {
		if due > 0 {
			r.Logger.Info("deliveries whose wait is over are dispatched", "dispatched", due)
		}
	}()
	began := r.Now()
	for {
		tasks, more, err := r.Ledger.Due(ctx, r.Batch)
		if err != nil {
			return err
		}
		r.Dispatcher.Dispatch(ctx, tasks)
		due += len(tasks)
		if !more || r.Now().Sub(began) >= r.Interval {
			return nil
		}
	}
}

// isPostgresSteady reports whether Postgres has run for at least Grace, this process has not found it slow or
// unavailable within Grace, and its clock has not jumped ahead within jumpGrace. In that time, running workers record
// the outcomes that they have. now is the time by Postgres' clock.
//
// The clock jumps if it is set, if another server with another clock takes over, or if the machine was suspended. Then
// leases expire although their workers run, or continue to run.
func (r *Reconciler) isPostgresSteady(ctx context.Context) (steady bool, now time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, slowPostgres)
	defer cancel()
	asked := r.Now()
	now, started, err := r.Ledger.Clock(ctx)
	if err != nil {
		return false, now, err
	}
	// This process measures monotonic time, which does not run while the machine is suspended. Without a jump, the two
	// readings differ by less than slowPostgres, because the statement takes no longer.
	jump := now.Sub(r.clock) - asked.Sub(r.clockRead)
	if !r.clock.IsZero() && jump > slowPostgres {
		r.clockJumped = asked
		r.Logger.Warn("the clock of Postgres jumped ahead, or this machine was suspended: leases of running "+
			"deliveries may have expired, so no lease is ended for a time",
			"jump", jump.Round(time.Second), "for", jumpGrace)
	}
	r.clock, r.clockRead = now, asked
	uptime := now.Sub(started) // negative: the clock was set back since the start, perhaps by hours
	return (uptime >= r.Grace || uptime < 0) && asked.Sub(r.postgresLost) >= r.Grace &&
		asked.Sub(r.clockJumped) >= jumpGrace, now, nil
}

// expireLeases ends the claims whose leases have expired, and returns their number. Their deliveries wait for the next
// claim. After the last attempt, one more claim loads the outcome that the worker may have spooled. If its lease
// expires too, the delivery is dead.
func (r *Reconciler) expireLeases(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, slowPostgres)
	defer cancel()
	n, dead, err := r.Ledger.ExpireLeases(ctx, r.Batch, r.Attempts+1)
	if dead > 0 && err == nil { // otherwise nothing was committed
		r.Logger.Warn("deliveries are dead (outcome_unknown): their worker ended in each of their attempts",
			"count", dead)
		r.CountDead(outcome.Unknown, dead)
	}
	return n, err
}

// dispatchLost replaces the tasks that Redis lost, and returns the number of new tasks. If Redis lost all of its data,
// which RedisMarker shows, it replaces all of them at once (dispatchAllLost). In any case it looks up the tasks of
// overdue deliveries (dispatchLate). now is the time by Postgres' clock.
func (r *Reconciler) dispatchLost(ctx context.Context, now time.Time) (lost int, err error) {
	if lost, err = r.dispatchAllLost(ctx, now); err != nil {
		return lost, err
	}
	late, err := r.dispatchLate(ctx)
	return lost + late, err
}

// dispatchAllLost enqueues new tasks for all deliveries that were dispatched before Redis last lost its data
// (TaskFinder.RedisMarker returns that time), and returns their number. It does nothing if it already did that
// completely for the same loss. now is the time by Postgres' clock. If Redis does not accept a task, dispatchAllLost
// returns no error, because a later round finds the remaining deliveries overdue.
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
	before := marker
	if before.After(now) { // the clock of the process that stored the marker is ahead
		before = now // LostBefore would select the same deliveries again until the time of the marker
	}
	for {
		tasks, err := r.Ledger.LostBefore(ctx, before, r.Batch)
		if err != nil {
			return lost, err
		}
		if r.Dispatcher.Dispatch(ctx, tasks) < len(tasks) {
			return lost, nil // Redis is unavailable again; a later round finds the remaining deliveries overdue
		}
		lost += len(tasks)
		if len(tasks) < r.Batch {
			r.redisMarker = marker
			return lost, nil
		}
	}
}

// dispatchLate looks up the tasks of overdue deliveries in Redis, replaces lost tasks by new ones, and returns the
// number of new tasks. If the delivery is overdue by r.Late, its task is lost if it will not run (queue.Nowhere) or is
// scheduled for a later time (queue.Postponed). If the delivery is overdue by stuckAfter (or 2*r.Late if that is
// longer), an active task is lost too.
func (r *Reconciler) dispatchLate(ctx context.Context) (lost int, err error) {
	active := 0
	lost, err = r.replaceTasks(ctx, r.Late, &r.late, func(p queue.Location) bool {
		if p == queue.Active {
			active++
		}
		return p == queue.Nowhere || p == queue.Postponed
	})
	if err != nil || active == 0 {
		return lost, err
	}
	more, err := r.replaceTasks(ctx, max(stuckAfter, 2*r.Late), &r.stuck,
		func(p queue.Location) bool { return p != queue.Pending })
	return lost + more, err
}

// replaceTasks looks up the task of each delivery that is overdue by at least late, and replaces it by a new one if
// isLost returns true for its location in Redis. It returns the number of new tasks. It stops after r.Interval, because
// in a long queue many deliveries are overdue although no task is lost. It begins after the delivery *after, and sets
// *after to the delivery after which the next call begins.
func (r *Reconciler) replaceTasks(ctx context.Context, late time.Duration, after *uuid.UUID,
	isLost func(queue.Location) bool) (lost int, err error) {
	var began time.Time
	for {
		tasks, err := r.Ledger.Overdue(ctx, late, *after, overdueBatches*r.Batch)
		if err != nil {
			return lost, err
		}
		if began.IsZero() { // the statement does not count, because it may take longer than r.Interval
			began = r.Now()
		}
		for _, t := range tasks {
			if r.Now().Sub(began) >= r.Interval {
				return lost, nil
			}
			place, err := r.Dispatcher.FindTask(t)
			if err != nil {
				return lost, &redisError{fmt.Errorf("compare with Redis: %w", err)}
			}
			*after = t.ID
			if !isLost(place) {
				continue
			}
			again, ok, err := r.Ledger.Redispatch(ctx, t)
			if err != nil {
				return lost, err
			}
			if ok {
				lost += r.Dispatcher.Dispatch(ctx, []ledger.Task{again})
			}
		}
		if len(tasks) < overdueBatches*r.Batch {
			*after = uuid.Nil
			return lost, nil
		}
	}
}
