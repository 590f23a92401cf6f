//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/testing/trial"
)

type bench struct {
	options
	services
	site     *trial.Site
	database string // URL of the database
}

// The names of the queues.
const (
	realRedis = "Redis"
	miniRedis = "miniredis"
)

// load describes one end-to-end run.
type load struct {
	queue    string
	inflight int // HERALD_CONCURRENCY, of each worker
	agents   int
	n        int
	limited  bool // one agent at the default limits per origin; other runs with few agents have no such limits
	batched  bool // the agents accept several deliveries in one call
	unsorted bool // HERALD_ORDER=off
	watched  bool // operators watch: open pages refresh, and one client follows the events
	workers  int  // number of worker processes; 0 means 1
	lifted   bool // no limits per origin and agent
}

// isUsual reports whether the run differs from the others of its queue only in its numbers.
func (l load) isUsual() bool { return !l.watched && !l.unsorted && !l.lifted }

// processes returns the number of worker processes.
func (l load) processes() int { return max(1, l.workers) }

func (l load) String() string {
	return fmt.Sprintf("%s, %d in flight, %d agents, %d deliveries%s", l.queue, l.inflight, l.agents, l.n, l.conditions())
}

// conditions lists the settings that differ from a usual run.
func (l load) conditions() (s string) {
	for _, c := range []struct {
		name string
		is   bool
	}{{"default limits", l.limited}, {"in batches", l.batched}, {"order off", l.unsorted}, {"pages open", l.watched},
		{fmt.Sprintf("%d workers", l.workers), l.workers > 0}, {"limits lifted", l.lifted}} {
		if c.is {
			s += ", " + c.name
		}
	}
	return s
}

// loadResult is the result of a run.
type loadResult struct {
	load
	rate    float64 // deliveries per second, from the first call to the last recorded outcome
	took    time.Duration
	repeats int     // calls in excess of one per delivery
	handed  float64 // dispatches per delivery; above 1, deliveries reached a limit and were dispatched again
	cpu     shares  // per delivery
	costs   costs
	idle    float64 // share of the machine's cores that were idle during the run
	start   vitals  // when workers are ready, before any delivery
	peak    vitals
	end     vitals // shortly after the last delivery
	trend   trend  // of the goroutines of warm workers
}

const (
	runTimeout   = 30 * time.Minute
	startTimeout = time.Minute
	settle       = 3 * time.Second
	pollRows     = 50 * time.Millisecond
)

// environment returns the worker's environment. It restores the defaults of settings that trials shorten.
func (l load) environment(redisURL, data string) []string {
	env := []string{"HERALD_CALL_TIMEOUT=30s", "HERALD_LEASE_MARGIN=1m", "HERALD_LEASE=2m", "REDIS_URL=" + redisURL}
	if l.agents < l.inflight*l.processes() && !l.limited || l.lifted {
		env = append(env, "HERALD_ENDPOINT_INFLIGHT=1000", "HERALD_ENDPOINT_RATE=1000000", "HERALD_EFFORT_BUDGET=off")
	}
	if l.unsorted {
		env = append(env, "HERALD_ORDER=off")
	}
	if l.queue == miniRedis {
		env = append(env, "REDIS_URL=", "HERALD_QUEUE=embedded", "HERALD_DATA="+data)
	}
	return env
}

// load delivers to each agent, so that connections and tool lists exist. Then it pauses the lanes, accepts all rows,
// and measures the time from the moment at which the lanes continue.
func (b *bench) load(ctx context.Context, l load) (res loadResult, err error) {
	say("%s", l)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	res.load = l
	agents, err := trial.StartAgents(l.agents)
	if err != nil {
		return res, err
	}
	defer agents.Close()
	if err := b.site.ListAgents(agents); err != nil {
		return res, err
	}
	if l.batched {
		agents.OfferBatches(0) // there is only one agent
	}
	ws, f, closeAll, err := b.workers(ctx, l)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if res.start, err = vitalsOf(ctx, ws); err != nil {
		return res, err
	}

	// Chance decides which worker gets a delivery, so make enough deliveries that each worker contacts each agent.
	warm := max(l.agents, 4*l.inflight) * l.processes() * l.processes()
	if err := f.accept(ctx, agents, warm); err != nil {
		return res, err
	}
	if err := b.site.AwaitFinal(ctx); err != nil {
		return res, fmt.Errorf("first contact: %w", err)
	}
	if err := f.pause(); err != nil {
		return res, err
	}
	empty, err := b.readCounters(ctx)
	if err != nil {
		return res, err
	}
	if err := f.accept(ctx, agents, l.n); err != nil {
		return res, err
	}
	waiting, err := f.countWaiting()
	if err != nil {
		return res, err
	}
	accepted, err := b.readCounters(ctx)
	if err != nil {
		return res, err
	}
	before := agents.Count()
	cpu, err := b.cpu(ctx, ws)
	if err != nil {
		return res, err
	}
	idle, err := readIdle()
	if err != nil {
		return res, err
	}
	ran := time.Now()
	watch := observe(ctx, ws)
	if l.watched {
		address, err := ws[0].Address()
		if err != nil {
			return res, err
		}
		done := lookOn(ctx, address)
		defer func() { err = errors.Join(err, done()) }()
	}
	began := time.Now()
	if err := f.resume(); err != nil {
		return res, err
	}
	err = trial.Until(ctx, pollRows, "every delivery to be called", func() (bool, error) { return agents.Count() >= before+l.n, nil })
	if err == nil {
		err = b.site.AwaitFinal(ctx)
	}
	res.peak, res.trend = watch()
	if err != nil {
		return res, err
	}
	spent, err := b.cpu(ctx, ws)
	if err != nil {
		return res, err
	}
	res.cpu = spent.minus(cpu).each(l.n)
	idleNow, err := readIdle()
	if err != nil {
		return res, err
	}
	res.idle = float64(idleNow-idle) / (float64(time.Since(ran)) * float64(runtime.NumCPU()))
	if err := b.count(ctx, &res, agents, began); err != nil {
		return res, err
	}
	select {
	case <-ctx.Done():
		return res, context.Cause(ctx)
	case <-time.After(settle):
	}
	if res.end, err = vitalsOf(ctx, ws); err != nil {
		return res, err
	}
	// Read after the pause, because Postgres's backends report their commits once a second.
	delivered, err := b.readCounters(ctx)
	if err != nil {
		return res, err
	}
	res.costs = costsOf(empty, accepted, delivered, l.n, waiting)
	for _, w := range ws {
		// Samples miss the peak. Without /proc they are all that there is.
		if peak, err := w.PeakResidentBytes(); err == nil {
			res.peak.memory = max(res.peak.memory, float64(peak))
		}
	}
	res.peak.goroutines = max(res.peak.goroutines, res.start.goroutines, res.end.goroutines) // short runs have few samples
	say("  %.0f/s in %s, %s ms of CPU each, %d repeated, %.0f MB at most", res.rate, res.took.Round(time.Millisecond), res.cpu, res.repeats, mb(res.peak.memory))
	return res, nil
}

// count computes the rate from the rows.
func (b *bench) count(ctx context.Context, res *loadResult, agents *trial.Agents, began time.Time) error {
	rows, err := b.site.Rows(ctx)
	if err != nil {
		return err
	}
	calls, err := agents.Calls()
	if err != nil {
		return err
	}
	var first, last time.Time
	called := 0
	for _, c := range calls {
		if c.Begun.Before(began) {
			continue
		}
		called++
		if first.IsZero() || c.Begun.Before(first) {
			first = c.Begun
		}
	}
	handed, n := 0, 0
	for _, r := range rows {
		if r.Status != "delivered" {
			return fmt.Errorf("delivery %s is %s %s: this is no measurement", r.ID, r.Status, r.Reason)
		}
		if r.FinishedAt.After(began) {
			n++
			handed += r.Dispatch
			if r.FinishedAt.After(last) {
				last = r.FinishedAt
			}
		}
	}
	if n != res.n {
		return fmt.Errorf("%d deliveries ended, not %d: this is no measurement", n, res.n)
	}
	res.took, res.repeats, res.handed = last.Sub(first), called-res.n, float64(handed)/float64(n)
	res.rate = float64(n) / res.took.Seconds()
	return nil
}

// workers resets the services and starts the workers, and the feeder of their jobs. After an error, the site ends the
// workers.
func (b *bench) workers(ctx context.Context, l load) (ws []*trial.Worker, f *feeder, closeAll func() error, err error) {
	if err := b.reset(ctx); err != nil {
		return nil, nil, nil, err
	}
	// Only its owner can enter a folder that MkdirTemp creates. If the worker is root, it would run redis-server as
	// another user, which cannot enter the folder, so it uses miniredis. Otherwise it uses miniredis only if the
	// machine has no redis-server.
	closed, err := os.MkdirTemp(b.data, "worker-")
	if err != nil {
		return nil, nil, nil, err
	}
	data := filepath.Join(closed, "data")
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for range l.processes() {
		w, err := b.site.Worker(trial.WorkerConfig{Name: "worker", Concurrency: l.inflight, Env: l.environment(b.site.Redis.URL(), data)})
		if err != nil {
			return nil, nil, nil, err
		}
		ws = append(ws, w)
		if err := w.Ready(wait); err != nil {
			return nil, nil, nil, err
		}
	}
	redisURL := b.site.Redis.URL()
	if l.queue == miniRedis {
		if redisURL, err = ownRedis(ws[0], data); err != nil {
			return nil, nil, nil, err
		}
	}
	if f, err = newFeeder(b.database, redisURL, !l.unsorted); err != nil {
		return nil, nil, nil, err
	}
	return ws, f, func() (err error) {
		f.close()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		for _, w := range ws {
			err = errors.Join(err, w.Terminate(stop))
		}
		return errors.Join(err, os.RemoveAll(closed))
	}, nil
}

// ownRedis returns the address of the worker's miniredis.
func ownRedis(w *trial.Worker, data string) (string, error) {
	mini := false
	for l, err := range w.Lines() {
		if err != nil {
			return "", err
		}
		mini = mini || strings.HasPrefix(l.Message, "redis: using miniredis")
	}
	if !mini {
		return "", errors.New("the worker found a redis-server and runs that: miniredis can be measured as root, or where there is none")
	}
	run, err := embedded.ReadRunFile(data)
	return run.RedisURL, err
}

// reset empties the tables and Redis. The checkpoint keeps disk writes of the previous run out of the next
// measurement.
func (b *bench) reset(ctx context.Context) error {
	var err error
	for _, sql := range []string{`TRUNCATE herald.history, herald.work, herald.attempts, herald.agents`, `CHECKPOINT`} {
		err = errors.Join(err, b.site.Exec(ctx, sql))
	}
	return errors.Join(err, b.site.Redis.Client().FlushAll(ctx).Err())
}
