//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// report contains all measurements.
type report struct {
	machine  environment
	loads    []loadResult
	scale    []loadResult
	bridge   bridgeResult
	ceilings []ceiling
	latency  latency
}

func (r report) markdown() string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	p("# Speed\n")
	p("Written by `make bench` (`scripts/bench`); every number was measured by the run that wrote it.\n")
	m := r.machine
	p("- machine: %d cores, %s, %.0f GiB of memory, Linux %s", m.cores, m.cpu, float64(m.memory)/(1<<30), m.kernel)
	p("- Go %s, Postgres %s, Redis %s", m.goVersion, m.postgres, m.redis)
	p("%s", m.measured())
	p("- everything runs on these cores: worker, Postgres, Redis, agents, and the program that accepts the jobs\n")
	writeTargets(p, r.targets())
	r.loadTable(p)
	r.bridgeText(p)
	r.scaleTable(p)
	r.costTable(p)
	r.rateTable(p)
	r.ceilingTable(p)
	r.latencyText(p)
	return s.String()
}

// targets returns the targets and their results. If several runs yield a number, it uses the worst one.
func (r report) targets() []target {
	usual := r.slowest(realRedis, targetAgents, targetAgents)
	backlog := r.last(func(l load) bool { return l.lifted })
	at := fmt.Sprintf("%d in flight, %d agents", targetInflight, targetAgents)
	idle := r.latency
	var started, full float64
	for _, l := range slices.Concat(r.loads, r.scale) {
		started, full = max(started, l.start.memory), max(full, l.peak.memory)
	}
	return []target{
		r.rateTarget(realRedis, targetAgents, targetAgents, 2000, "≥ 2,000/s, goal 3,000/s", 3000),
		r.rateTarget(realRedis, manyAgents, math.MaxInt, 2000, "≥ 2,000/s, goal 3,000/s", 3000),
		r.rateTarget(miniRedis, targetAgents, math.MaxInt, 900, "≥ 900/s", 0),
		r.cpuTarget(),
		r.bridgeTarget(),
		{"rate compared with the commit in which each delivery committed by itself, measured alternately", "≥ 2.2 ×", "`make bench-turns`", notMeasured},
		judge("added latency, idle system, p50", "≤ 20 ms", idle.n > 0, ms(idle.p50), idle.p50 <= 20*time.Millisecond),
		judge("added latency, idle system, p99", "≤ 60 ms", idle.n > 0, ms(idle.p99), idle.p99 <= 60*time.Millisecond),
		judge("first contact with an agent (MCP handshake; the agent's document is not resolved)", "< 1 s", idle.n > 0,
			fmt.Sprintf("%s at most (p50 %s, %d agents)", ms(idle.firstMax), ms(idle.firstP50), idle.first), idle.firstMax < time.Second),
		judge("worker resident, idle", "< 100 MB", started > 0, fmt.Sprintf("%.0f MB", mb(started)), mb(started) < 100),
		judge("worker resident, full load", "< 250 MB", full > 0, fmt.Sprintf("%.0f MB", mb(full)), mb(full) < 250),
		judge("goroutines over 100,000 deliveries", "flat", backlog.trend.first > 0 && backlog.n >= 100000,
			fmt.Sprintf("%.0f at most in the first third of the backlog, %.0f in the last; %d deliveries", backlog.trend.first, backlog.trend.last, backlog.n),
			flat(backlog.trend)),
		{"healthy agents' p99 with 1 % of agents hanging", "≤ 1.5 ×", "`make chaos`", notMeasured},
		compare("a flood for one agent at the default limits, in batches, compared with single deliveries", "≥ 20 ×", 20,
			r.last(func(l load) bool { return l.limited && l.batched }), r.last(func(l load) bool { return l.limited && !l.batched })),
		compare("while pages are open and refresh themselves, "+at, "≥ 95 % of without", 0.95, r.last(func(l load) bool { return l.watched }), usual),
		compare("order kept, one delivery of each client, "+at, "≥ 97 % of `HERALD_ORDER=off`", 0.97, usual,
			r.last(func(l load) bool { return l.unsorted })),
		compare("backlog: 25 times as many waiting deliveries, limits lifted", "≥ 95 % of the rate", 0.95, backlog,
			r.last(func(l load) bool { return l.lifted && l.n < backlog.n })),
	}
}

// compare judges a run, whose rate has to be at least a share of another run's.
func compare(what, needed string, share float64, run, other loadResult) target {
	is := fmt.Sprintf("%.0f %%", 100*run.rate/other.rate)
	if share > 1 {
		is = fmt.Sprintf("%.1f ×", run.rate/other.rate)
	}
	return judge(what, needed, run.rate > 0 && other.rate > 0, fmt.Sprintf("%s (%s against %s)", is, perS(run.rate), perS(other.rate)),
		run.rate >= share*other.rate)
}

// flat reports whether the goroutines did not grow. It allows for small fluctuations, such as an additional
// connection.
func flat(t trend) bool { return t.last <= 1.05*t.first+10 }

// rateTarget judges the slowest run whose number of agents is from agents to most.
func (r report) rateTarget(queue string, agents, most int, least float64, needed string, goal float64) target {
	some := fmt.Sprintf("%s agents", thousands(agents))
	if most > agents {
		some = "≥ " + some
	}
	worst := r.slowest(queue, agents, most)
	t := judge(fmt.Sprintf("end to end on %s, %d in flight, %s", queue, targetInflight, some), needed, worst.rate > 0,
		fmt.Sprintf("%s (%s agents)", perS(worst.rate), thousands(worst.agents)), worst.rate >= least)
	if goal > 0 && worst.rate >= goal {
		t.verdict = "met, the goal too"
	}
	return t
}

// slowest returns the run with the lowest rate at the target's concurrency.
func (r report) slowest(queue string, agents, most int) (worst loadResult) {
	for _, l := range r.loads {
		if l.queue == queue && l.inflight == targetInflight && l.isUsual() && l.agents >= agents && l.agents <= most &&
			(worst.rate == 0 || l.rate < worst.rate) {
			worst = l
		}
	}
	return worst
}

// pickMedian returns the run with the median rate. It has the repeated calls of all runs.
func pickMedian(runs []loadResult) loadResult {
	slices.SortFunc(runs, func(a, b loadResult) int { return cmp.Compare(a.rate, b.rate) })
	median := runs[len(runs)/2]
	median.repeats = 0
	for _, r := range runs {
		median.repeats += r.repeats
	}
	return median
}

// last returns the last run for which is returns true.
func (r report) last(is func(load) bool) (found loadResult) {
	for _, l := range r.loads {
		if is(l.load) {
			found = l
		}
	}
	return found
}

// cpuTarget judges the run with the most processor time per delivery.
func (r report) cpuTarget() target {
	var most loadResult
	for _, l := range r.loads {
		if l.queue == realRedis && l.inflight == targetInflight && l.isUsual() && l.agents >= targetAgents && l.cpu.sum() > most.cpu.sum() {
			most = l
		}
	}
	sum := most.cpu.sum()
	return judge(fmt.Sprintf("CPU per delivery, all four together, %d in flight, ≥ %d agents", targetInflight, targetAgents), "≤ 1.0 ms", sum > 0,
		fmt.Sprintf("%.2f ms (%s agents)", float64(sum)/float64(time.Millisecond), thousands(most.agents)), sum <= time.Millisecond)
}

func (r report) loadTable(p func(string, ...any)) {
	if len(r.loads) == 0 {
		return
	}
	p("## End to end\n")
	p("One worker runs. The jobs name their endpoint over pooled HTTP and have no file. Events are not checked, and each delivery has a")
	p("different client. The clock starts after all deliveries are accepted and every agent was called once. It stops when the last outcome")
	p("is recorded. With fewer agents than deliveries in flight, the limits per origin are disabled, except in the rows with default limits.")
	p("Pages open: nine pages refresh themselves, and one client follows the events. The runs on Redis with 16 in flight and 64 agents were")
	p("made three times by turns with pages and without order, and the table has those with the median rate.")
	p("Hand-outs: a value above one means that deliveries reached a limit and had to wait. Miniredis is part of the worker. The time of the")
	p("agents is the time of this program.\n")
	p("| queue | in flight | agents | deliveries | per second | of the ceilings | ms of CPU each: worker, Postgres, Redis, agents | hand-outs each | resident start, peak, end | goroutines start, peak, end |")
	p("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, l := range r.loads {
		p("| %s | %d | %d%s | %d | %s | %s | %s | %.2f | %s | %s |", l.queue, l.inflight, l.agents, l.conditions(), l.n, perS(l.rate), r.share(l), l.cpu, l.handed, memories(l), goroutines(l))
	}
	p("")
	for _, l := range slices.Concat(r.loads, r.scale) {
		if l.repeats != 0 {
			p("%s: there were %d more calls than deliveries.\n", l.load, l.repeats)
		}
	}
}

// share returns the rate as a share of the three ceilings together.
func (r report) share(l loadResult) string {
	for _, c := range r.ceilings {
		if c.inflight == l.inflight && !l.limited {
			return fmt.Sprintf("%.0f %%", 100*l.rate/c.together(l.queue))
		}
	}
	return "–"
}

func (r report) ceilingTable(p func(string, ...any)) {
	if len(r.ceilings) == 0 {
		return
	}
	p("## Ceilings on the same machine\n")
	p("Each part is measured alone and uses all cores: asynq with a handler that does nothing, MCP calls through the worker's own pool (the")
	p("agents included), and the two statements of a delivery. Together: the rate of a delivery that consists of these three parts only,")
	p("1 / (1/a + 1/b + 1/c).\n")
	p("| in flight | asynq tasks/s | on miniredis | MCP calls/s | claim + record/s | together | together, miniredis |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, c := range r.ceilings {
		p("| %d | %s | %s | %s | %s | %s | %s |", c.inflight, perS(c.tasks), perS(c.miniTasks), perS(c.calls), perS(c.statements),
			perS(c.together(realRedis)), perS(c.together(miniRedis)))
	}
	p("")
}

func (r report) latencyText(p func(string, ...any)) {
	l := r.latency
	if l.n == 0 {
		return
	}
	p("## Latency of an idle system\n")
	p("The latency is the time from the creation of the row, just before its commit, to the arrival of the call at the agent, with one")
	p("delivery at a time: p50 %s, p99 %s, at most %s (%d deliveries to known agents). The first contact also includes", ms(l.p50), ms(l.p99), ms(l.most), l.n)
	p("connection, handshake and tool list: p50 %s, at most %s (%d agents).\n", ms(l.firstP50), ms(l.firstMax), l.first)
}

func memories(l loadResult) string {
	return fmt.Sprintf("%.0f, %.0f, %.0f MB", mb(l.start.memory), mb(l.peak.memory), mb(l.end.memory))
}

func goroutines(l loadResult) string {
	return fmt.Sprintf("%.0f, %.0f, %.0f", l.start.goroutines, l.peak.goroutines, l.end.goroutines)
}
