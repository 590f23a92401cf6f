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
	"github.com/agentherald/herald/internal/store/ledger"
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

	Logger *slog.Logger // default slog.Default()
}

// Consumer moves jobs from the old backend's list to Postgres. Of several consumers of a list, one at a time reads it.
type Consumer struct {
	Config
	list   *list
	worker string // this consumer's unique id

	done    []any           // hashes of the elements that are committed in Postgres and not yet removed from Redis
	failing logging.Service // the service whose failure reportError logged last; empty: no service fails
}

const (
	// readerLease is how long after its last call of Redis a worker counts as the one that reads.
	readerLease   = 5 * time.Second
	acceptTimeout = 10 * time.Second // bounds the commit of a batch
	leaveTimeout  = 2 * time.Second  // bounds the call of Redis with which a worker stops reading

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
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Consumer{Config: cfg, list: newList(cfg.Client, cfg.List), worker: uuid.NewString()}, nil
}

// Run moves jobs until ctx ends. If ctx ends during a commit, Run finishes the commit first.
func (c *Consumer) Run(ctx context.Context) {
	c.Logger.Info("taking jobs from the old backend's list", "list", c.List, "worker", c.worker)
	pause := time.Duration(0)
	for ctx.Err() == nil {
		n, err := c.takeBatch(ctx)
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

// takeBatch removes the elements of the previous batch from the list, reads the next batch, and commits it in Postgres.
// It returns the number of elements in the new batch; 0 without an error means that there is nothing to read.
func (c *Consumer) takeBatch(ctx context.Context) (int, error) {
	b, err := c.list.readBatch(ctx, c.worker, readerLease, c.done)
	if err != nil {
		return 0, err
	}
	c.done = nil
	c.Metrics.depth.Set(float64(b.length))
	if len(b.elements) == 0 {
		return 0, nil
	}
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
	defer cancel()
	taken, err := c.Acceptor.FromList(commit, b.elements)
	if err != nil {
		return 0, &commitError{err} // the elements stay in Redis, and the next call reads them again
	}
	c.done = b.hashes
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
	counts := map[ledger.Verdict]int{}
	for _, t := range taken {
		counts[t.Verdict]++
		switch t.Verdict {
		case intake.Rejected:
			c.Logger.Info("job from Redis refused", "list", c.List, "delivery", t.ID,
				"key", t.Key, "problem", t.Problem)
		case ledger.Conflict:
			c.Logger.Warn("job from Redis not accepted: its event is stored with other content",
				"list", c.List, "delivery", t.ID, "key", t.Key, "field", t.Path)
		}
	}
	for verdict, n := range counts {
		c.Metrics.taken.WithLabelValues(string(verdict)).Add(float64(n))
	}
	c.Logger.Info("jobs accepted from Redis", "list", c.List,
		"accepted", counts[ledger.Accepted], "known", counts[ledger.Known],
		"conflict", counts[ledger.Conflict], "rejected", counts[intake.Rejected])
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

// signOff removes the committed elements from the list, and lets another worker read it at once.
func (c *Consumer) signOff(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if _, err := c.list.readBatch(ctx, c.worker, 0, c.done); err != nil {
		c.Logger.Info("the last jobs could not be removed from the old backend's list: another worker reads them again",
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
