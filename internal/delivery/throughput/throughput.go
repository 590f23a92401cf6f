// Package throughput counts what attempts came to, minute by minute and over all workers, for the overview: how many of
// each status, and a histogram of the time from acceptance to the agent's answer.
//
// What does not live here: counts that anybody relies on. They are in Redis, for a day, and lost with it; the
// truth is in Postgres, where counting the last hour would read every delivery of it.
package throughput

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
)

// Minute is what one minute's attempts came to.
type Minute struct {
	At       time.Time
	Outcomes map[store.Status]int64
	Latency  Histogram
}

// bounds are the upper ends of the histogram's buckets, in seconds; the last bucket has none.
var bounds = [...]float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 36000, 86400}

// Histogram counts latencies by bucket.
type Histogram [len(bounds) + 1]int64

// Add adds another one.
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

// Quantile is the value in seconds below which the share q of them lies, by interpolation within its bucket; false: there
// are none.
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
	return bounds[len(bounds)-1], true // beyond the last bound nothing is known
}

// Counters is Redis as counting needs it.
type Counters interface {
	// AddCounts adds to named counters of each key, which are kept for ttl.
	AddCounts(ctx context.Context, counts map[string]map[string]int64, ttl time.Duration) error
	// Counts reads the counters of each key, in order.
	Counts(ctx context.Context, keys []string) ([]map[string]int64, error)
}

const (
	flushEvery   = 2 * time.Second
	flushTimeout = 2 * time.Second
	keepFor      = 25 * time.Hour
	// maxUnsent is how many minutes are kept while Redis is away.
	maxUnsent = 60
)

// Counter counts for one worker. Safe for concurrent use.
type Counter struct {
	redis Counters
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	minutes map[int64]*Minute // by unix minute; what Redis has not been told of
}

// New makes a Counter; now nil is time.Now.
func New(redis Counters, log *slog.Logger, now func() time.Time) *Counter {
	if now == nil {
		now = time.Now
	}
	return &Counter{redis: redis, log: log, now: now, minutes: map[int64]*Minute{}}
}

// Count notes an outcome; age is that of a delivered one.
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

// Run tells Redis what was counted, until ctx ends, and then once more.
func (c *Counter) Run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.sendCounts(ctx)
		case <-ctx.Done():
			c.sendCounts(context.WithoutCancel(ctx))
			return
		}
	}
}

// sendCounts gives Redis what was counted. What it does not take is counted again with the next.
func (c *Counter) sendCounts(ctx context.Context) {
	c.mu.Lock()
	unsent := c.minutes
	c.minutes = map[int64]*Minute{}
	c.mu.Unlock()
	if len(unsent) == 0 {
		return
	}
	counts := make(map[string]map[string]int64, len(unsent))
	for minute, m := range unsent {
		counts[minuteKey(minute)] = m.encodeCounts()
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := c.redis.AddCounts(ctx, counts, keepFor); err != nil {
		c.log.Info("the overview's counts wait for Redis", logging.About(logging.Redis), "error", err)
		c.restoreCounts(unsent)
	}
}

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

// Minutes reads the last n minutes of all workers, oldest first; the last one is under way.
func (c *Counter) Minutes(ctx context.Context, n int) ([]Minute, error) {
	last := c.now().Unix() / 60
	keys := make([]string, n)
	for i := range keys {
		keys[i] = minuteKey(last - int64(n-1-i))
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
		minutes[i].At = time.Unix((last-int64(n-1-i))*60, 0).UTC()
	}
	return minutes, nil
}

func minuteKey(minute int64) string { return fmt.Sprintf("herald:minute:%d", minute) }

// bucketPrefix begins the name of a counter that is a bucket; the others are statuses.
const bucketPrefix = "le"

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
