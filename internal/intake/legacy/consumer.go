package legacy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/intake"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Acceptor commits elements of the list. It may be called again with the same elements after an error.
type Acceptor interface {
	FromList(ctx context.Context, elements []intake.Element) ([]intake.Taken, error)
}

// Config configures a Consumer.
type Config struct {
	// Client is the connection to Redis. Each call must end in bounded time, also without a deadline of its context.
	// Required.
	Client   redis.UniversalClient
	Acceptor Acceptor // required
	List     string   // HERALD_LEGACY_QUEUE; required
	Metrics  *Metrics // required

	// PollInterval is the time between two polls of an empty list. Default 100 ms.
	PollInterval time.Duration
	// Alive is how long a worker counts as alive after it last fetched a batch. After that, other workers return its
	// elements to the list. Default 30 s.
	Alive time.Duration

	Logger *slog.Logger // default slog.Default()
}

// Consumer moves jobs from the old backend's list to Postgres. Consumers of several processes may share one list.
type Consumer struct {
	Config
	list   *list
	worker string // this consumer's unique id

	done    batch           // committed in Postgres, not yet acknowledged in Redis
	cursor  uint64          // where putBackOfDead continues to list the workers (listWorkers)
	checked time.Time       // when putBackOfDead last checked the other workers
	failing logging.Service // the failing service that reportError last logged; empty: all work
}

const (
	// acceptTimeout bounds a commit. It is shorter than Alive, so that a worker whose Postgres hangs does not count as
	// dead.
	acceptTimeout = 10 * time.Second
	leaveTimeout  = 2 * time.Second // bounds signOff

	// firstPause and longestPause bound the pause between two tries while Redis or Postgres fails.
	firstPause   = 250 * time.Millisecond
	longestPause = 8 * time.Second
)

// New validates the configuration and sets the defaults.
func New(cfg Config) (*Consumer, error) {
	if cfg.Client == nil || cfg.Acceptor == nil || cfg.List == "" || cfg.Metrics == nil {
		return nil, errors.New("legacy: a Redis client, an acceptor, a list and metrics are needed")
	}
	cfg.PollInterval = cmp.Or(cfg.PollInterval, 100*time.Millisecond)
	cfg.Alive = cmp.Or(cfg.Alive, 30*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Consumer{Config: cfg, list: newList(cfg.Client, cfg.List), worker: uuid.NewString()}, nil
}

// Run moves jobs until ctx ends. It finishes a commit that has begun.
func (c *Consumer) Run(ctx context.Context) {
	c.Logger.Info("taking jobs from the old backend's list", "list", c.List, "worker", c.worker)
	pause := time.Duration(0)
	for ctx.Err() == nil {
		n, err := c.takeBatch(ctx)
		if err == nil {
			err = c.putBackOfDead(ctx)
		}
		switch {
		case err != nil && ctx.Err() != nil:
		case err != nil:
			c.reportError(err)
			pause = min(max(2*pause, firstPause), longestPause)
		case n == 0:
			c.reportError(nil)
			pause = c.PollInterval
		default:
			c.reportError(nil)
			pause = 0
		}
		c.awaitPause(ctx, pause)
	}
	c.signOff(ctx)
}

func (c *Consumer) awaitPause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// takeBatch acknowledges the previous batch, fetches the next one and commits it. It returns the number of elements in
// the batch; 0 without an error means that the list is empty.
func (c *Consumer) takeBatch(ctx context.Context) (int, error) {
	b, err := c.list.takeBatch(ctx, c.worker, c.done, c.Alive)
	if err != nil {
		return 0, err
	}
	c.done = batch{}
	c.Metrics.depth.Set(float64(b.waiting))
	if len(b.elements) == 0 {
		return 0, nil
	}
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
	defer cancel()
	taken, err := c.Acceptor.FromList(commit, b.elements)
	if err != nil {
		return 0, &commitError{err} // the elements stay in the processing list
	}
	c.done = b
	c.logTaken(taken)
	return len(taken), nil
}

// commitError marks an error of the Acceptor, to distinguish it from errors of Redis.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// logTaken logs each element that did not become a delivery (rejected or conflict), and one line with the counts of all
// verdicts. It also adds these counts to the metrics.
func (c *Consumer) logTaken(taken []intake.Taken) {
	counts := map[store.Verdict]int{}
	for _, t := range taken {
		counts[t.Verdict]++
		switch t.Verdict {
		case intake.Rejected:
			c.Logger.Info("job from Redis refused", "list", c.List, "delivery", t.ID, "key", t.Key, "problem", t.Problem)
		case store.Conflict:
			c.Logger.Warn("job from Redis not accepted: its event is stored with other content", "list", c.List, "delivery", t.ID,
				"key", t.Key, "field", t.Field)
		}
	}
	for verdict, n := range counts {
		c.Metrics.taken.WithLabelValues(string(verdict)).Add(float64(n))
	}
	c.Logger.Info("jobs accepted from Redis", "list", c.List, "accepted", counts[store.Accepted], "known", counts[store.Known],
		"conflict", counts[store.Conflict], "rejected", counts[intake.Rejected])
}

// putBackOfDead returns the elements of dead workers to the list. It looks for dead workers at most three times per
// Alive, on one page of listWorkers each time, and otherwise does nothing.
func (c *Consumer) putBackOfDead(ctx context.Context) error {
	if time.Since(c.checked) < c.Alive/3 {
		return nil
	}
	workers, next, err := c.list.listWorkers(ctx, c.cursor)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if w == c.worker {
			continue
		}
		n, err := c.list.putBack(ctx, w)
		if err != nil {
			return err
		}
		if n > 0 {
			c.Logger.Info("returned the elements of a dead worker to the list", "list", c.List, "worker", w, "jobs", n)
		}
	}
	c.cursor, c.checked = next, time.Now()
	return nil
}

// reportError logs one line when Redis or Postgres begins to fail, and one when both work again. A nil err means that
// both work.
func (c *Consumer) reportError(err error) {
	var commit *commitError
	now := logging.Service("")
	switch {
	case errors.As(err, &commit):
		now = logging.Postgres
	case err != nil:
		now = logging.Redis
	}
	if now == c.failing {
		return
	}
	c.failing = now
	switch now {
	case "":
		c.Logger.Info("jobs are read from the old backend's list again", "list", c.List)
	case logging.Postgres:
		c.Logger.Warn("jobs from the old backend's list could not be stored: they stay in Redis and are tried again",
			logging.About(now), "list", c.List, "error", err)
	default:
		c.Logger.Warn("the old backend's list could not be read: it is tried again", logging.About(now),
			"list", c.List, "error", err)
	}
}

// signOff acknowledges the committed batch and returns this worker's other elements to the list immediately.
func (c *Consumer) signOff(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := c.list.removeWorker(ctx, c.worker, c.done); err != nil {
		c.Logger.Info("the elements that were read from the old backend's list could not be returned: another worker finds them",
			"list", c.List, "error", err)
	}
}
