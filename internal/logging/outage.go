package logging

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Service is something outside that a worker cannot do without.
type Service string

// The services.
const (
	Postgres Service = "Postgres"
	Redis    Service = "Redis"
)

const (
	probeInterval = time.Second     // between two probes while something is, or may be, wrong
	calmInterval  = 5 * time.Second // and while nothing is

	// steadyTime is how long a service has to answer before an outage ends: one that comes and goes makes one pair of
	// lines each time.
	steadyTime = 3 * time.Second
	// aftermath is how long after an outage failures still belong to it: what was asked before the end runs into its
	// timeout later.
	aftermath = 30 * time.Second
	// explainTime is how long a failure waits for the outage that explains it; unexplainedInterval is how often those
	// that none explained are told.
	explainTime         = 10 * time.Second
	unexplainedInterval = time.Minute
)

// OutageConfig makes an Outage.
type OutageConfig struct {
	Service Service
	Probe   func(context.Context) error // asks whether the service answers; it has a deadline of its own
	Begins  string                      // what the log says when an outage begins: what waits, and what to look at
	Probed  func(err error)             // hears of every probe: for /readyz; nil: nobody does
	Logger  *slog.Logger
}

// Outage owns what a process knows about a service's being away. It probes; the first probe that fails begins an
// outage, and it ends when the service has answered for a while. Everybody else's lines about the service (see About)
// only have it look at once; what fails though the service answers is counted and told once a minute.
type Outage struct {
	OutageConfig
	wake chan struct{} // a line reported a failure

	mu       sync.Mutex
	away     bool
	began    time.Time // of the outage, while away
	back     time.Time // since when it answers again, while away; zero: it does not
	ended    time.Time // of the last outage
	failures failures
}

// failures are those that no outage explains yet.
type failures struct {
	count int
	first time.Time
	last  string
	told  time.Time // when such were told last
}

// isDue tells whether there are some, and no outage came that explains them.
func (f *failures) isDue(now time.Time) bool {
	return f.count > 0 && now.Sub(f.first) >= explainTime && now.Sub(f.told) >= unexplainedInterval
}

// NewOutage begins with a service that is not away. Run is needed for anything to happen.
func NewOutage(cfg OutageConfig) *Outage {
	return &Outage{OutageConfig: cfg, wake: make(chan struct{}, 1)}
}

// Run probes until ctx ends.
func (o *Outage) Run(ctx context.Context) {
	for {
		asked := time.Now()
		err := o.Probe(ctx)
		calm := false
		if ctx.Err() == nil { // else the probe was cut off, which says nothing
			if calm = o.observeProbe(asked, time.Now(), err); o.Probed != nil {
				o.Probed(err)
			}
		}
		if !o.awaitProbe(ctx, calm) {
			o.tellFailures(time.Now())
			return
		}
	}
}

// awaitProbe waits until the next probe is due; false: ctx ended.
func (o *Outage) awaitProbe(ctx context.Context, calm bool) bool {
	timer := time.NewTimer(probeInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	if !calm {
		return true
	}
	timer.Reset(calmInterval - probeInterval)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-o.wake:
	}
	return true
}

// observeProbe takes what a probe found, and tells whether all is well.
func (o *Outage) observeProbe(asked, now time.Time, err error) (calm bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil && !o.away:
		o.away, o.began, o.back = true, asked, time.Time{}
		o.failures.count = 0 // explained
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
		o.tellLocked(now)
	}
	return !o.away && o.failures.count == 0
}

// reportLine takes a line about the service. failed: something was not done, which an outage has to explain; else it is
// only a reason to look.
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
	default: // it will look
	}
}

// tellFailures tells what no outage explained.
func (o *Outage) tellFailures(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures.count > 0 {
		o.tellLocked(now)
	}
}

func (o *Outage) tellLocked(now time.Time) {
	f := &o.failures
	o.Logger.Warn(fmt.Sprintf("%s answers, but some of what it is asked fails; what failed is tried again.", o.Service),
		"failures", f.count, "within", now.Sub(f.first), "last", f.last)
	f.count, f.told = 0, now
}

// roundForPeople is a duration in a sentence: whole seconds, or tenths of few.
func roundForPeople(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return max(d, 100*time.Millisecond).Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
