//go:build linux && chain

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The ways in which events are read.
const (
	wayLines   = "`enqueue FILE`"
	wayRaw     = "backfill, a node that answers from raw logs"
	wayAnvil   = "backfill from anvil"
	wayChecked = "backfill from anvil, whose logs are checked (`HERALD_RPC_TRUST` unset)"
	wayAlone   = "eth_getLogs alone, from the same anvil in the same ranges"
	wayPoll    = "polled over HTTP"
	waySocket  = "notified over a websocket"
)

// The targets.
const (
	leastRate  = 5000.0 // events per second, from a file and from raw logs
	leastShare = 0.6    // minimum share of the rate of eth_getLogs alone
	mostGrowth = 1.3    // maximum growth of memory, from a tenth of a long run to its end
	overPoll   = 20 * time.Millisecond
	mostSocket = 100 * time.Millisecond
	longEvents = 1_000_000
	soFar      = "so far" // the target is met, but the run was too short
)

type blockLatency struct {
	way      string
	poll     time.Duration
	blocks   int
	p50, p99 time.Duration
}

type chainReport struct {
	machine   machine
	usual     int // events per run
	runs      []measuredRun
	latencies []blockLatency
}

// of returns the runs of a way: those with the usual number of events, or the longer ones. They are sorted by rate.
func (r *chainReport) of(way string, long bool) (runs []measuredRun) {
	for _, run := range r.runs {
		if run.way == way && run.events > r.usual == long {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, func(a, b measuredRun) int { return int(a.rate() - b.rate()) })
	return runs
}

// median returns the rate of the middle run, or 0 if there are no runs.
func (r *chainReport) median(way string) float64 {
	runs := r.of(way, false)
	if len(runs) == 0 {
		return 0
	}
	return runs[len(runs)/2].rate()
}

func (r *chainReport) targets() (all []target) {
	for _, way := range []string{wayLines, wayRaw} {
		rate := r.median(way)
		all = append(all, judge(way, "≥ "+perS(leastRate), rate > 0, perS(rate), rate >= leastRate))
	}
	rate, alone := r.median(wayAnvil), r.median(wayAlone)
	all = append(all, judge(wayAnvil, fmt.Sprintf("≥ %.0f %% of eth_getLogs alone", leastShare*100), alone > 0,
		fmt.Sprintf("%.0f %% (%s of %s)", 100*rate/alone, perS(rate), perS(alone)), rate >= leastShare*alone))
	for _, way := range []string{wayLines, wayRaw} {
		m := append(r.of(way, true), measuredRun{})[0]
		t := judge(way+", memory", "flat over "+thousands(longEvents)+" events", m.events > 0,
			fmt.Sprintf("%d MB after a tenth of %s, %d at the end, %d at most", m.start>>20, thousands(m.events), m.end>>20, m.peak>>20),
			float64(m.end) <= mostGrowth*float64(m.start))
		if t.verdict == met && m.events < longEvents {
			t.verdict = soFar
		}
		all = append(all, t)
	}
	for _, way := range []string{wayPoll, waySocket} {
		l, most, needed := r.latency(way), mostSocket, "≤ "+mostSocket.String()
		if way == wayPoll {
			most, needed = l.poll/2+overPoll, fmt.Sprintf("≤ half of %s + %s", cmp.Or(l.poll, pollOften), overPoll)
		}
		all = append(all, judge("block mined to job accepted, p50, "+way, needed, l.blocks > 0, ms(l.p50), l.p50 <= most))
	}
	return all
}

// latency returns the measurement of a way, or the zero value.
func (r *chainReport) latency(way string) blockLatency {
	i := slices.IndexFunc(r.latencies, func(l blockLatency) bool { return l.way == way })
	if i < 0 {
		return blockLatency{}
	}
	return r.latencies[i]
}

// missed returns an error for the missed targets, or nil.
func (r *chainReport) missed() error {
	var errs []error
	for _, t := range r.targets() {
		if t.verdict == notMet {
			errs = append(errs, fmt.Errorf("missed: %s is %s, needed %s", t.what, t.measured, t.needed))
		}
	}
	return errors.Join(errs...)
}

func (r *chainReport) markdown() string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	p("# From a chain and from a file\n")
	p("Written by `make bench-chain` (`scripts/bench`); every number was measured by the run that wrote it.\n")
	m := r.machine
	p("- machine: %d cores, %s, Linux %s; Go %s", m.cores, m.cpu, m.kernel, m.goVersion)
	p("%s", m.measured())
	p("- everything runs on these cores: Herald, Postgres, Redis, the node")
	p("- feedback for %s agents from %d clients each, %d events in a block; `--rate 0`; medians of the runs\n", thousands(chainAgents),
		chainClients, perBlock)
	writeTargets(p, r.targets())
	p("The row with eth_getLogs alone reads each answer to its end and discards it. Anvil keeps its logs in memory. A backfill also decodes the")
	p("logs and inserts a row with its indexes for each, in the transaction that moves its cursor. This work explains the difference.\n")
	p("## All runs\n")
	p("Each time is from the start of the program to its end. Every run begins with an empty database. A run counts only if the database contains")
	p("every event afterwards.\n")
	p("| way | events | a second | lowest to highest | resident: after a tenth, at the end, at most |\n| --- | ---: | ---: | ---: | --- |")
	for _, long := range []bool{false, true} {
		for _, way := range []string{wayLines, wayRaw, wayAnvil, wayChecked, wayAlone} {
			if runs := r.of(way, long); len(runs) > 0 {
				p("%s", formatRuns(runs))
			}
		}
	}
	if len(r.latencies) > 0 {
		p("\n## From a block to its jobs\n")
		p("Each time is from the request that mines a block to the line that `enqueue watch` prints when its job is committed.\n")
		p("| how | pause | blocks | p50 | p99 |\n| --- | ---: | ---: | ---: | ---: |")
		for _, l := range r.latencies {
			p("| %s | %s | %d | %s | %s |", l.way, l.poll, l.blocks, ms(l.p50), ms(l.p99))
		}
	}
	return s.String()
}

// formatRuns returns the line of a way's runs, which must be sorted, slowest first.
func formatRuns(runs []measuredRun) string {
	m, slow, fast := runs[len(runs)/2], runs[0], runs[len(runs)-1]
	resident := "–"
	if m.peak > 0 {
		resident = fmt.Sprintf("%d, %d, %d MB", m.start>>20, m.end>>20, m.peak>>20)
	}
	return fmt.Sprintf("| %s | %s | %s | %s to %s | %s |", m.way, thousands(m.events), thousands(int(m.rate()+.5)),
		thousands(int(slow.rate()+.5)), thousands(int(fast.rate()+.5)), resident)
}
