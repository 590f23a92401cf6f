package legacy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Acceptor stores elements of the old backend's Redis list in Postgres. *intake.Intake implements it. After an error, a
// Consumer passes the same elements again.
type Acceptor interface {
	FromList(ctx context.Context, elements []intake.Element) ([]intake.Answer, error)
}

// Config configures a Consumer.
type Config struct {
	// Client calls Redis. Each of its calls must end in bounded time, even if the context has no deadline. Required.
	Client   redis.Cmdable
	Acceptor Acceptor // required
	List     string   // name of the old backend's list (HERALD_LEGACY_QUEUE); required
	Metrics  *Metrics // required

	// PollInterval is the time between two polls of an empty list. Default 100 ms.
	PollInterval time.Duration
	// Alive is the time after its last fetch of a batch at which a worker counts as dead. Other workers then return its
	// elements to the list. Default 30 s.
	Alive time.Duration

	Logger *slog.Logger // default slog.Default()
}

// Consumer moves jobs from the old backend's list to Postgres. Consumers in several processes may read the same list.
type Consumer struct {
	Config
	list   *list
	worker string // this consumer's unique id

	done    batch           // the batch that is committed in Postgres and not yet acknowledged in Redis
	cursor  uint64          // cursor of listWorkers for the next page of workers
	checked time.Time       // when putBackOfDead last checked the other workers
	failing logging.Service // the service whose failure reportError logged last; empty: no service fails
}

const (
	// acceptTimeout bounds the commit of a batch. It is shorter than the default of Alive. So a worker whose Postgres
	// does not answer fetches again, and stays alive, before it counts as dead.
	acceptTimeout = 10 * time.Second
	leaveTimeout  = 2 * time.Second // bounds the call to Redis with which a stopping worker returns its elements

	// firstPause and longestPause bound the pause of Run after an error. Each further error doubles the pause.
	firstPause   = 250 * time.Millisecond
	longestPause = 8 * time.Second
)

// New validates cfg, sets its defaults, and returns a Consumer.
func New(cfg Config) (*Consumer, error) {
	if cfg.Client == nil || cfg.Acceptor == nil || cfg.List == "" || cfg.Metrics == nil {
		return nil, errors.New("legacy: a Redis client, an acceptor, a list and metrics are needed")
	}
	cfg.PollInterval = cmp.Or(cfg.PollInterval, 100*time.Millisecond)
	cfg.Alive = cmp.Or(cfg.Alive, 30*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Consumer{Config: cfg, list: newList(cfg.Client, cfg.List), worker: uuid.NewString()}, nil
}

// Run moves jobs until ctx ends. If ctx ends during a commit, Run finishes the commit first.
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
		_ = loop.Pause(ctx, pause)
	}
	c.signOff(ctx)
}

// takeBatch acknowledges the previous batch of list elements in Redis, fetches the next batch, and commits it in
// Postgres. It returns the number of elements in the new batch; 0 without an error means that the list is empty.
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
		return 0, &commitError{err} // the elements stay in Redis, and the next call fetches them again
	}
	c.done = b
	c.logTaken(taken)
	return len(taken), nil
}

// commitError wraps an error of the Acceptor. By this type, reportError recognises an error of Postgres; all other
// errors of a batch are errors of Redis.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// logTaken logs each element that is rejected or in conflict, and one line with the number of elements of each verdict.
// It also adds these numbers to the metrics.
func (c *Consumer) logTaken(taken []intake.Answer) {
	counts := map[store.Verdict]int{}
	for _, t := range taken {
		counts[t.Verdict]++
		switch t.Verdict {
		case intake.Rejected:
			c.Logger.Info("job from Redis refused", "list", c.List, "delivery", t.ID,
				"key", t.Key, "problem", t.Problem)
		case store.Conflict:
			c.Logger.Warn("job from Redis not accepted: its event is stored with other content",
				"list", c.List, "delivery", t.ID, "key", t.Key, "field", t.Path)
		}
	}
	for verdict, n := range counts {
		c.Metrics.taken.WithLabelValues(string(verdict)).Add(float64(n))
	}
	c.Logger.Info("jobs accepted from Redis", "list", c.List,
		"accepted", counts[store.Accepted], "known", counts[store.Known],
		"conflict", counts[store.Conflict], "rejected", counts[intake.Rejected])
}

// putBackOfDead returns the elements of dead workers to the list. It checks one page of listWorkers per call, and at
// most three pages per Alive; a call within Alive/3 after the last check does nothing.
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

// reportError logs one line when Redis or Postgres begins to fail, and one when both work again. err is the
// error of the last batch; nil means that both work.
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

// signOff acknowledges the committed batch, and returns this worker's other elements to the list without waiting until
// the worker counts as dead.
func (c *Consumer) signOff(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := c.list.removeWorker(ctx, c.worker, c.done); err != nil {
		c.Logger.Info(
			"the elements that were read from the old backend's list could not be returned: another worker finds them",
			"list", c.List, "error", err)
	}
}

// Metrics are the metrics of a Consumer.
type Metrics struct {
	taken *prometheus.CounterVec
	depth prometheus.Gauge
}

// NewMetrics creates the metrics and registers them with reg.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		taken: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_legacy_jobs_total",
			Help: "Jobs taken from the list HERALD_LEGACY_QUEUE by what became of them: accepted, known, conflict or " +
				"rejected."}, []string{"verdict"}),
		depth: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_legacy_queue_depth",
			Help: "Jobs in the list HERALD_LEGACY_QUEUE when this worker looked last."})}
	return m, errors.Join(reg.Register(m.taken), reg.Register(m.depth))
}
