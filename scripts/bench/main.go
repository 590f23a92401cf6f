//go:build linux

// Command bench measures the speed of Herald and writes a report. It measures deliveries per second end to end, with
// their ceilings on the same machine; the latency of an idle system; and the worker's memory and goroutines.
//
//	bench -o docs/bench.md          all measurements, about 12 minutes
//	bench -n 200 -latency 20        a quick check that it works
//	bench chain                     how fast events come in, from a file and from a chain; needs the build tag chain
//
// Workers are processes on their own Postgres and Redis (internal/testing/trial). The agents and the feeder of jobs run in
// this process, on the same cores. Every number in the file is measured by the run that writes it. The part below the
// marker line in the file is written by hand and kept.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// options are the command line's flags.
type options struct {
	out     string
	n       int // deliveries per run
	latency int // deliveries that are made one at a time
	only    string
	match   *regexp.Regexp // nil means all runs
}

func main() {
	measure := measureDeliveries
	if len(os.Args) > 1 && os.Args[1] == "chain" {
		measure = measureEvents
	}
	script.Run("bench", measure)
}

// measureDeliveries reads the command line and makes the measurements of docs/bench.md.
func measureDeliveries(ctx context.Context) {
	var o options
	flag.StringVar(&o.out, "o", "", "the `file` to write; without: standard output")
	flag.IntVar(&o.n, "n", 12000, "deliveries of one run; a quarter with one in flight or one agent")
	flag.IntVar(&o.latency, "latency", 500, "deliveries whose latency is measured")
	flag.StringVar(&o.only, "only", "", "measure only these, separated by commas: load, backlog, scale, ceilings, latency, bridge")
	flag.Func("match", "make only runs from end to end whose name matches this `expression`, as in 'miniredis, 16 in flight'", func(s string) (err error) {
		o.match, err = regexp.Compile(s)
		return err
	})
	flag.Parse()
	if o.n < 1 || o.latency < 0 || flag.NArg() > 0 {
		script.Fail("-n must be at least 1, -latency at least 0, and there are no arguments")
	}
	queue.LogDriver(slog.New(slog.DiscardHandler))
	withServices(ctx, func(s services) {
		s.onSite(ctx, "bench", func(site *trial.Site) {
			b := &bench{options: o, services: s, site: site, database: script.Must(s.postgres.Database("bench"))}
			r := report{machine: b.readEnvironment(ctx)}
			b.measure(ctx, &r)
			script.Check(write(o.out, r.markdown()))
		})
	})
}

// targetAgents is the smallest number of agents in the targets. targetInflight is their number of concurrent
// deliveries.
const (
	targetAgents   = 64
	manyAgents     = 1000
	targetInflight = 16
	turns          = 3 // how often compared runs are made (load.isCompared)
)

// inflights are the measured numbers of concurrent deliveries (HERALD_CONCURRENCY).
var inflights = []int{1, targetInflight, 64}

func (b *bench) measure(ctx context.Context, r *report) {
	r.loads = b.measureLoads(ctx)
	for _, workers := range []int{1, 2, 4} {
		l := load{queue: realRedis, inflight: targetInflight, agents: targetAgents, n: max(b.n/2, 1), workers: workers}
		if b.wants("scale") && b.matches(l) {
			r.scale = append(r.scale, b.load(ctx, l))
		}
	}
	if b.wants("ceilings") {
		for _, inflight := range inflights {
			r.ceilings = append(r.ceilings, b.ceilings(ctx, inflight))
		}
	}
	if b.wants("latency") && b.latency > 0 {
		r.latency = b.idle(ctx)
	}
	if b.wants("bridge") {
		r.bridge = b.measureBridge(ctx)
	}
}

// measureLoads makes the end-to-end runs. It makes those that targets compare with each other by turns, and returns of
// each the run with the median rate, because the machine's speed changes from minute to minute.
func (b *bench) measureLoads(ctx context.Context) (medians []loadResult) {
	loads, runs := b.loads(), map[load][]loadResult{}
	for turn := range turns {
		for _, l := range loads {
			if turn == 0 || l.isCompared() {
				runs[l] = append(runs[l], b.load(ctx, l))
			}
		}
	}
	for _, l := range loads {
		medians = append(medians, pickMedian(runs[l]))
	}
	return medians
}

// loads returns the end-to-end runs.
func (b *bench) loads() []load {
	var all []load
	for _, queue := range []string{realRedis, miniRedis} {
		for _, inflight := range inflights {
			for _, agents := range []int{1, targetAgents, manyAgents} {
				all = append(all, load{queue: queue, inflight: inflight, agents: agents, n: b.deliveries(inflight, agents)})
			}
		}
	}
	all = append(all, load{queue: realRedis, inflight: targetInflight, agents: 1, n: min(b.n, 2000), limited: true},
		load{queue: realRedis, inflight: targetInflight, agents: 1, n: min(b.n, 10000), limited: true, batched: true},
		load{queue: realRedis, inflight: targetInflight, agents: targetAgents, n: b.deliveries(targetInflight, targetAgents), watched: true},
		load{queue: realRedis, inflight: targetInflight, agents: targetAgents, n: b.deliveries(targetInflight, targetAgents), unsorted: true})
	if !b.wants("load") {
		all = nil
	}
	if b.wants("backlog") {
		for _, n := range []int{b.n, 25 * b.n} {
			all = append(all, load{queue: realRedis, inflight: targetInflight, agents: manyAgents, n: n, lifted: true})
		}
	}
	return slices.DeleteFunc(all, func(l load) bool { return !b.matches(l) })
}

// matches reports whether the command line selects a run.
func (b *bench) matches(l load) bool { return b.match == nil || b.match.MatchString(l.String()) }

func (b *bench) wants(what string) bool {
	return b.only == "" || slices.Contains(strings.Split(b.only, ","), what)
}

// deliveries returns the number of deliveries of a run. It is a quarter of the usual number with one in flight or one
// agent, because these runs are much slower.
func (b *bench) deliveries(inflight, agents int) int {
	if inflight == 1 || agents == 1 {
		return max(b.n/4, 1)
	}
	return b.n
}
