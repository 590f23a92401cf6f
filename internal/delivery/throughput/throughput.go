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
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/store"
)

// Minute contains the outcomes of attempts in the minute, or hour, that begins at At, and the latencies of the
// deliveries that the agents accepted in it.
type Minute struct {
	At       time.Time
	Outcomes map[store.Status]int64
	Latency  Histogram
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

func (h *Histogram) addLatency(age time.Duration) {
	i := 0
	for i < len(bounds) && age.Seconds() > bounds[i] {
		i++
	}
	h[i]++
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
	// maxUnsent bounds the minutes kept in memory while Redis is unavailable. Later minutes are not counted.
	maxUnsent = 60
)

// Counter counts the outcomes of one worker and adds them to Redis. It is safe for concurrent use.
type Counter struct {
	redis Counters
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	minutes map[int64]*Minute // by Unix minute: counts that are not in Redis yet
}

// New returns a Counter. If now is nil, it uses time.Now.
func New(redis Counters, log *slog.Logger, now func() time.Time) *Counter {
	if now == nil {
		now = time.Now
	}
	return &Counter{redis: redis, log: log, now: now, minutes: map[int64]*Minute{}}
}

// Count counts an outcome. age is the time between the acceptance of the delivery's job by Herald and the agent's
// answer, and is counted only if status is Delivered. If the counts of maxUnsent other minutes are not in Redis yet,
// the outcome is not counted.
func (c *Counter) Count(status store.Status, age time.Duration) {
	minute := c.now().Unix() / 60
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.minutes[minute]
	if m == nil {
		if len(c.minutes) >= maxUnsent {
			return
		}
		m = &Minute{Outcomes: map[store.Status]int64{}}
		c.minutes[minute] = m
	}
	m.Outcomes[status]++
	if status == store.Delivered {
		m.Latency.addLatency(age)
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
	c.mu.Lock()
	unsent := c.minutes
	c.minutes = map[int64]*Minute{}
	c.mu.Unlock()
	if len(unsent) == 0 {
		return
	}
	counts, hours := make(map[string]map[string]int64, len(unsent)), map[string]map[string]int64{}
	for minute, m := range unsent {
		counts[perMinute.key(minute)] = m.encodeCounts()
		hour := perHour.key(minute / 60)
		if hours[hour] == nil {
			hours[hour] = map[string]int64{}
		}
		for name, n := range m.encodeCounts() {
			hours[hour][name] += n
		}
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := c.redis.AddCounts(ctx, counts, perMinute.kept); err != nil {
		c.log.Info("the overview's counts wait for Redis", logging.About(logging.Redis), "error", err)
		c.restoreCounts(unsent)
		return
	}
	if err := c.redis.AddCounts(ctx, hours, perHour.kept); err != nil { // not sent again: the minutes would count twice
		c.log.Info("counts of the hour are lost", logging.About(logging.Redis), "error", err)
	}
}

// restoreCounts puts unsent, the counts that a failed call could not add to Redis, into c.minutes again. It adds the
// later counts of the same minutes to them.
func (c *Counter) restoreCounts(unsent map[int64]*Minute) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for minute, m := range unsent {
		if now := c.minutes[minute]; now != nil {
			for status, n := range now.Outcomes {
				m.Outcomes[status] += n
			}
			m.Latency.Add(now.Latency)
		}
		c.minutes[minute] = m
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
	counts, err := c.redis.Counts(ctx, keys)
	if err != nil {
		return nil, err
	}
	minutes := make([]Minute, n)
	for i := range minutes {
		minutes[i] = decodeMinute(counts[i])
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

// encodeCounts returns the minute's counters by name: the statuses, and the buckets with bucketPrefix.
func (m *Minute) encodeCounts() map[string]int64 {
	out := make(map[string]int64, len(m.Outcomes)+4)
	for status, n := range m.Outcomes {
		out[string(status)] = n
	}
	for i, n := range m.Latency {
		if n > 0 {
			out[bucketPrefix+strconv.Itoa(i)] = n
		}
	}
	return out
}

// decodeMinute returns the minute with the counters that encodeCounts returned. It ignores unknown buckets.
func decodeMinute(counts map[string]int64) Minute {
	m := Minute{Outcomes: map[store.Status]int64{}}
	for name, n := range maps.All(counts) {
		digits, isBucket := strings.CutPrefix(name, bucketPrefix)
		i, err := strconv.Atoi(digits)
		switch {
		case !isBucket:
			m.Outcomes[store.Status(name)] = n
		case err == nil && i >= 0 && i < len(m.Latency):
			m.Latency[i] = n
		}
	}
	return m
}
