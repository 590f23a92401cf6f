//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
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

// isCompared reports whether the run is one of those at the targets' numbers, of which one condition is changed.
func (l load) isCompared() bool {
	return l.queue == realRedis && l.inflight == targetInflight && l.agents == targetAgents
}

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
func (b *bench) load(ctx context.Context, l load) loadResult {
	say("%s", l)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	res := loadResult{load: l}
	agents := script.Must(trial.StartAgents(l.agents))
	defer agents.Close()
	script.Check(b.site.ListAgents(agents))
	if l.batched {
		agents.OfferBatches(0) // there is only one agent
	}
	ws, f, end := b.workers(ctx, l)
	defer script.Close(end)
	res.start = readVitals(ctx, ws)

	// Chance decides which worker gets a delivery, so make enough deliveries that each worker contacts each agent.
	f.accept(ctx, agents, max(l.agents, 4*l.inflight)*l.processes()*l.processes())
	script.Check(b.site.AwaitFinal(ctx))
	f.pause()
	empty := b.readCounters(ctx)
	f.accept(ctx, agents, l.n)
	waiting := f.countWaiting()
	accepted := b.readCounters(ctx)
	before := agents.Count()
	cpu := b.readCPU(ctx, ws)
	idle := readIdle()
	ran := time.Now()
	watch := countGoroutines(ctx, ws)
	if l.watched {
		defer script.Close(lookOn(ctx, script.Must(ws[0].Address())))
	}
	began := time.Now()
	f.resume()
	err := trial.Until(ctx, pollRows, "every delivery to be called", func() (bool, error) { return agents.Count() >= before+l.n, nil })
	if err == nil {
		err = b.site.AwaitFinal(ctx)
	}
	samples := watch()
	res.trend = trendOf(samples)
	script.Check(err)
	res.cpu = b.readCPU(ctx, ws).minus(cpu).each(l.n)
	res.idle = float64(readIdle()-idle) / (float64(time.Since(ran)) * float64(runtime.NumCPU()))
	b.count(ctx, &res, agents, began)
	script.Sleep(ctx, settle)
	res.end = readVitals(ctx, ws)
	// Read after the pause, because Postgres's backends report their commits once a second.
	res.costs = costsOf(empty, accepted, b.readCounters(ctx), l.n, waiting)
	for _, w := range ws {
		res.peak.memory = max(res.peak.memory, float64(script.Must(w.Status()).VmHWM))
	}
	res.peak.goroutines = slices.Max(append(samples, res.start.goroutines, res.end.goroutines)) // short runs have few samples
	say("  %.0f/s in %s, %s ms of CPU each, %d repeated, %.0f MB at most", res.rate, res.took.Round(time.Millisecond), res.cpu, res.repeats, mb(res.peak.memory))
	return res
}

// count computes the rate from the rows.
func (b *bench) count(ctx context.Context, res *loadResult, agents *trial.Agents, began time.Time) {
	rows, calls := script.Must(b.site.Rows(ctx)), script.Must(agents.Calls())
	calls = slices.DeleteFunc(calls, func(c trial.Call) bool { return c.Begun.Before(began) }) // the others are in the order in which they began
	var last time.Time
	handed, n := 0, 0
	for _, r := range rows {
		if r.Status != "delivered" {
			script.Fail("delivery %s is %s %s: this is no measurement", r.ID, r.Status, r.Reason)
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
		script.Fail("%d deliveries ended, not %d: this is no measurement", n, res.n)
	}
	res.took, res.repeats, res.handed = last.Sub(calls[0].Begun), len(calls)-res.n, float64(handed)/float64(n)
	res.rate = float64(n) / res.took.Seconds()
}

// workers resets the services and starts the workers, and the feeder of their jobs. end ends them. After an error, the
// site ends the workers.
func (b *bench) workers(ctx context.Context, l load) (ws []*trial.Worker, f *feeder, end func() error) {
	b.reset(ctx)
	// Only its owner can enter a folder that MkdirTemp creates. If the worker is root, it would run redis-server as
	// another user, which cannot enter the folder, so it uses miniredis. Otherwise it uses miniredis only if the
	// machine has no redis-server.
	closed := script.Must(os.MkdirTemp(b.data, "worker-"))
	data := filepath.Join(closed, "data")
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	redisURL := b.site.Redis.URL()
	for range l.processes() {
		w := script.Must(b.site.Worker(trial.WorkerConfig{Name: "worker", Concurrency: l.inflight, Env: l.environment(redisURL, data)}))
		ws = append(ws, w)
		script.Check(w.Ready(wait))
	}
	if l.queue == miniRedis {
		redisURL = findOwnRedis(ws[0], data)
	}
	f = newFeeder(b.database, redisURL, !l.unsorted)
	return ws, f, script.Within(ctx, startTimeout, func(ctx context.Context) (err error) {
		f.close()
		for _, w := range ws {
			err = errors.Join(err, w.Terminate(ctx))
		}
		return errors.Join(err, os.RemoveAll(closed))
	})
}

// findOwnRedis returns the address of the worker's miniredis.
func findOwnRedis(w *trial.Worker, data string) string {
	for l, err := range w.Lines() {
		script.Check(err)
		if strings.HasPrefix(l.Message, "redis: using miniredis") {
			return script.Must(embedded.ReadRunFile(data)).RedisURL
		}
	}
	script.Fail("the worker found a redis-server and runs that: miniredis can be measured as root, or where there is none")
	return ""
}

// reset empties the tables and Redis. The checkpoint keeps disk writes of the previous run out of the next
// measurement.
func (b *bench) reset(ctx context.Context) {
	for _, sql := range []string{`TRUNCATE herald.history, herald.work, herald.attempts, herald.agents`, `CHECKPOINT`} {
		script.Check(b.site.Exec(ctx, sql))
	}
	script.Check(b.site.Redis.Client().FlushAll(ctx).Err())
}
