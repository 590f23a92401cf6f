// Package throughput counts the outcomes of attempts per minute and per hour, over all workers, for the overview page:
// the number of each status, and a histogram of the time between the acceptance of a delivery's job by Herald and the
// agent's answer.
//
// The counts are approximate, because Redis keeps them for a day or a week and may lose them. The exact numbers are in
// Postgres, where counting those of the last hour would read every delivery of that hour.
package throughput

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/outcome"
)

// Minute contains the outcomes of attempts in the minute, or hour, that begins at At, and the latencies of the
// deliveries that the agents accepted in it.
type Minute struct {
	At       time.Time                `json:"at"`
	Outcomes map[outcome.Status]int64 `json:"outcomes"`
	Latency  Histogram                `json:"-"`
}

// bounds are the upper bounds of the histogram's buckets, in seconds. The last bucket has no upper bound.
var bounds = [...]float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 36000, 86400}

// Histogram is the number of latencies per bucket (see bounds).
type Histogram [len(bounds) + 1]int64

// Add adds the counts of other to h.
func (h *Histogram) Add(other Histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// findBucket returns the bucket of a latency.
func findBucket(age time.Duration) int {
	i, _ := slices.BinarySearch(bounds[:], age.Seconds())
	return i
}

// Quantile returns the latency in seconds below which the fraction q (0 to 1) of all latencies lies, interpolated
// within its bucket. In the last bucket, which has no upper bound, it returns the bucket's lower bound. If the
// histogram is empty, ok is false.
func (h Histogram) Quantile(q float64) (seconds float64, ok bool) {
	var total int64
	for _, n := range h {
		total += n
	}
	if total == 0 {
		return 0, false
	}
	rank, low := q*float64(total), 0.0
	for i, n := range h {
		if i == len(bounds) {
			break
		}
		if float64(n) >= rank && n > 0 {
			return low + (bounds[i]-low)*rank/float64(n), true
		}
		rank -= float64(n)
		low = bounds[i]
	}
	return bounds[len(bounds)-1], true // the last bucket has no upper bound
}

// Counters is the part of package queue that a Counter uses.
type Counters interface {
	// AddCounts adds counts, by key and name, to the counters in Redis. A key expires ttl after the last addition to
	// it.
	AddCounts(ctx context.Context, counts map[string]map[string]int64, ttl time.Duration) error
	// Counts returns the counters of each key by name, in the order of keys.
	Counts(ctx context.Context, keys []string) ([]map[string]int64, error)
}

const (
	flushEvery   = 2 * time.Second
	flushTimeout = 2 * time.Second
	// maxUnsent bounds the minutes, and the hours, kept in memory while Redis is unavailable. Later ones are not
	// counted.
	maxUnsent = 60
)

// Counter counts the outcomes of one worker and adds them to Redis. It is safe for concurrent use.
type Counter struct {
	redis Counters
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	unsent map[period]counts // not in Redis yet
}

// counts are the counters of periods: by key (period.key), and by the name of a status or bucket.
type counts map[string]map[string]int64

// New returns a Counter. If now is nil, it uses time.Now.
func New(redis Counters, log *slog.Logger, now func() time.Time) *Counter {
	if now == nil {
		now = time.Now
	}
	return &Counter{redis: redis, log: log, now: now, unsent: map[period]counts{perMinute: {}, perHour: {}}}
}

// Count counts an outcome. age is the time between the acceptance of the delivery's job by Herald and the agent's
// answer, and is counted only if status is Delivered. If the counts of maxUnsent other minutes or hours are not in
// Redis yet, the outcome is not counted.
func (c *Counter) Count(status outcome.Status, age time.Duration) {
	names := []string{string(status)}
	if status == outcome.Delivered {
		names = append(names, bucketPrefix+strconv.Itoa(findBucket(age)))
	}
	now := c.now().Unix()
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, unsent := range c.unsent {
		key := p.key(now / p.seconds)
		if unsent[key] == nil {
			if len(unsent) >= maxUnsent {
				continue
			}
			unsent[key] = map[string]int64{}
		}
		for _, name := range names {
			unsent[key][name]++
		}
	}
}

// Run sends the counts to Redis every two seconds until ctx ends, and then once more.
func (c *Counter) Run(ctx context.Context) {
	for range loop.Every(ctx, flushEvery) {
		c.sendCounts(ctx)
	}
	c.sendCounts(context.WithoutCancel(ctx))
}

// sendCounts adds to Redis the counts that are not there yet. If that fails, they are sent with the next ones.
func (c *Counter) sendCounts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	for _, p := range []period{perMinute, perHour} {
		c.mu.Lock()
		unsent := c.unsent[p]
		c.unsent[p] = counts{}
		c.mu.Unlock()
		if len(unsent) == 0 {
			continue
		}
		if err := c.redis.AddCounts(ctx, unsent, p.kept); err != nil {
			c.log.Info("the overview's counts wait for Redis", logging.About(logging.Redis), "error", err)
			c.restoreCounts(p, unsent)
		}
	}
}

// restoreCounts puts unsent, which a failed call could not add to Redis, into c.unsent again. It adds the later counts
// of the same keys to them.
func (c *Counter) restoreCounts(p period, unsent counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, named := range unsent {
		for name, n := range c.unsent[p][key] {
			named[name] += n
		}
		c.unsent[p][key] = named
	}
}

// Minutes returns the last n minutes of all workers, the oldest first. The last one has not ended.
func (c *Counter) Minutes(ctx context.Context, n int) ([]Minute, error) {
	return c.readLast(ctx, perMinute, n)
}

// Hours returns the last n hours of all workers, at most eight days, the oldest first. The last one has not ended.
func (c *Counter) Hours(ctx context.Context, n int) ([]Minute, error) {
	return c.readLast(ctx, perHour, n)
}

func (c *Counter) readLast(ctx context.Context, p period, n int) ([]Minute, error) {
	last := c.now().Unix() / p.seconds
	keys := make([]string, n)
	for i := range keys {
		keys[i] = p.key(last - int64(n-1-i))
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	found, err := c.redis.Counts(ctx, keys)
	if err != nil {
		return nil, err
	}
	minutes := make([]Minute, n)
	for i := range minutes {
		minutes[i] = decodeMinute(found[i])
		minutes[i].At = time.Unix((last-int64(n-1-i))*p.seconds, 0).UTC()
	}
	return minutes, nil
}

// period is a length of time for which Redis has a hash of counters.
type period struct {
	prefix  string
	seconds int64
	kept    time.Duration
}

var (
	perMinute = period{"herald:minute:", 60, 25 * time.Hour}
	perHour   = period{"herald:hour:", 3600, 8 * 24 * time.Hour}
)

// key returns the key of the period with this number since 1970.
func (p period) key(number int64) string { return p.prefix + strconv.FormatInt(number, 10) }

// bucketPrefix begins the names of counters that are buckets of the histogram. All other names are statuses.
const bucketPrefix = "le"

// decodeMinute returns the minute with these counters by name. It ignores unknown buckets.
func decodeMinute(named map[string]int64) Minute {
	m := Minute{Outcomes: map[outcome.Status]int64{}}
	for name, n := range named {
		digits, isBucket := strings.CutPrefix(name, bucketPrefix)
		i, err := strconv.Atoi(digits)
		switch {
		case !isBucket:
			m.Outcomes[outcome.Status(name)] = n
		case err == nil && i >= 0 && i < len(m.Latency):
			m.Latency[i] = n
		}
	}
	return m
}
