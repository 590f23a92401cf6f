package logging

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

// Service is an external service that a worker requires.
type Service string

// The services.
const (
	Postgres Service = "Postgres"
	Redis    Service = "Redis"
)

const (
	probeInterval = time.Second     // between two probes during an outage, or when one is suspected
	quietInterval = 5 * time.Second // between two probes otherwise

	// steadyTime is how long a service must answer before an outage ends. A service that fails repeatedly within that
	// time causes only one pair of lines.
	steadyTime = 3 * time.Second
	// aftermath is the time after an outage in which failures still count as part of it, because requests sent before
	// its end time out later.
	aftermath = 30 * time.Second
	// explainTime is how long a failure waits for an outage that explains it. unexplainedInterval is the minimum
	// interval between log lines about unexplained failures.
	explainTime         = 10 * time.Second
	unexplainedInterval = time.Minute
)

// OutageConfig configures an Outage.
type OutageConfig struct {
	Service Service
	Probe   func(context.Context) error // reports whether the service answers; must have its own deadline
	Begins  string                      // log line at the begin of an outage: its effect and the remedy
	Probed  func(err error)             // called after every probe, for /readyz; may be nil
	Logger  *slog.Logger
}

// Outage tracks the availability of a service in this process. It probes the service. An outage begins with the first
// failed probe and ends when the service has answered for steadyTime. Log lines of other packages about the service
// (see About) only trigger a probe. Failures while the service answers are counted and logged once a minute.
type Outage struct {
	OutageConfig
	wake chan struct{} // a line reported a failure

	mu       sync.Mutex
	away     bool
	began    time.Time // begin of the current outage
	back     time.Time // since when the service answers again, during an outage; zero: it does not
	ended    time.Time // end of the last outage
	failures failures
}

// failures counts failures that no outage has explained.
type failures struct {
	count    int
	first    time.Time
	last     string
	loggedAt time.Time // when failures were logged last
}

// isDue reports whether there are failures that no outage has explained in time, so that they must be logged.
func (f *failures) isDue(now time.Time) bool {
	return f.count > 0 && now.Sub(f.first) >= explainTime && now.Sub(f.loggedAt) >= unexplainedInterval
}

// NewOutage returns an Outage without a current outage. Run starts the probes.
func NewOutage(cfg OutageConfig) *Outage {
	return &Outage{OutageConfig: cfg, wake: make(chan struct{}, 1)}
}

// Run probes the service until ctx ends.
func (o *Outage) Run(ctx context.Context) {
	for {
		asked := time.Now()
		err := o.Probe(ctx)
		quiet := false
		if ctx.Err() == nil { // otherwise the end of ctx interrupted the probe
			if quiet = o.observeProbe(asked, time.Now(), err); o.Probed != nil {
				o.Probed(err)
			}
		}
		if !o.awaitProbe(ctx, quiet) {
			o.logFailures(time.Now())
			return
		}
	}
}

// awaitProbe waits until the next probe is due. If calm is true it waits longer, unless a failure is reported. It
// returns false if ctx ended.
func (o *Outage) awaitProbe(ctx context.Context, quiet bool) bool {
	if loop.Pause(ctx, probeInterval) != nil {
		return false
	}
	if !quiet {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(quietInterval - probeInterval):
	case <-o.wake:
	}
	return true
}

// observeProbe processes the result of a probe. It reports whether there is neither an outage nor an unexplained
// failure.
func (o *Outage) observeProbe(asked, now time.Time, err error) (quiet bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil && !o.away:
		o.away, o.began, o.back = true, asked, time.Time{}
		o.failures.count = 0 // the outage explains them
		o.Logger.Warn(o.Begins, "error", err)
	case err != nil:
		o.back = time.Time{}
	case o.away && o.back.IsZero():
		o.back = now
	case o.away && now.Sub(o.back) >= steadyTime:
		took := o.back.Sub(o.began)
		o.away, o.ended = false, now
		o.Logger.Warn(fmt.Sprintf("%s answers again after %s.", o.Service, roundForPeople(took)), "away", took)
	case !o.away && o.failures.isDue(now):
		o.logLocked(now)
	}
	return !o.away && o.failures.count == 0
}

// reportLine processes a log line about the service. failed means that an operation failed, which an outage has to
// explain; otherwise the line only triggers a probe.
func (o *Outage) reportLine(now time.Time, line string, failed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away || now.Sub(o.ended) < aftermath {
		return
	}
	if f := &o.failures; failed {
		if f.count == 0 {
			f.first = now
		}
		f.count++
		f.last = line
	}
	select {
	case o.wake <- struct{}{}:
	default: // a probe is already due
	}
}

// logFailures logs the failures that no outage explained.
func (o *Outage) logFailures(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures.count > 0 {
		o.logLocked(now)
	}
}

func (o *Outage) logLocked(now time.Time) {
	f := &o.failures
	o.Logger.Warn(fmt.Sprintf("%s answers, but some requests fail; they are tried again.", o.Service),
		"failures", f.count, "within", now.Sub(f.first), "last", f.last)
	f.count, f.loggedAt = 0, now
}

// roundForPeople rounds a duration for a sentence: to tenths of a second below 10 s, else to whole seconds.
func roundForPeople(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return max(d, 100*time.Millisecond).Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
