//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/agentherald/herald/scripts/machine"
)

// The targets are ratios to the bridge. The time that Herald adds to a call of mcp-go alone is reported without a
// target.
const (
	timesHTTP   = 25.0 // minimum ratio of calls per second
	timesStdio  = 50.0
	shareOfP99  = 0.1 // maximum share of the bridge's p99 over HTTP
	atInflight  = 16
	aloneFlight = 1
)

// report contains all measurements.
type report struct {
	machine machine.Machine
	node    string // version of Node.js
	rounds  int
	time    time.Duration
	ended   time.Time
	// heapGoal is the heap size in bytes at which this program's garbage collector ran at the end.
	heapGoal uint64
	cells    []cell // in the order of their first samples
	samples  map[cell][]sample
}

func (r *report) add(c cell, s sample) {
	if r.samples == nil {
		r.samples = map[cell][]sample{}
	}
	if _, known := r.samples[c]; !known {
		r.cells = append(r.cells, c)
	}
	r.samples[c] = append(r.samples[c], s)
}

// medians returns the medians of a cell over the rounds.
func (r *report) medians(c cell) sample {
	var rates []float64
	var p50s, p99s []time.Duration
	for _, s := range r.samples[c] {
		rates, p50s, p99s = append(rates, s.rate), append(p50s, s.p50), append(p99s, s.p99)
	}
	return sample{rate: median(rates), p50: median(p50s), p99: median(p99s)}
}

// target is one condition and its result.
type target struct {
	what, needed, measured string
	met                    bool
}

func (r *report) targets() []target {
	bridge := r.medians(cell{overHTTP, bridgeWay, atInflight})
	herald := r.medians(cell{overHTTP, heraldWay, atInflight})
	faster := herald.rate / bridge.rate
	tail := float64(herald.p99) / float64(bridge.p99)
	stdio := r.medians(cell{overStdio, heraldWay, atInflight}).rate / r.medians(cell{overStdio, bridgeWay, atInflight}).rate
	return []target{
		{"pooled HTTP, 16 in flight, calls a second", fmt.Sprintf("≥ %.0f × the bridge's", timesHTTP), fmt.Sprintf("%.1f ×", faster), faster >= timesHTTP},
		{"pooled HTTP, 16 in flight, p99", "≤ 1/10 of the bridge's", fmt.Sprintf("1/%.0f", 1/tail), tail <= shareOfP99},
		{"kept-alive stdio, 16 in flight, calls a second", fmt.Sprintf("≥ %.0f × the bridge's", timesStdio), fmt.Sprintf("%.1f ×", stdio), stdio >= timesStdio},
	}
}

// additions returns a line for each time that Herald adds to the calls of mcp-go alone.
func (r *report) additions() []string {
	var lines []string
	line := func(what string, a addition) {
		lines = append(lines, fmt.Sprintf("| %s | %s | %s |", what, micros(a.by), micros(a.bare)))
	}
	for _, over := range []string{overHTTP, overStdio} {
		line(over+", one at a time, p50", r.paired(over, aloneFlight, func(s sample) time.Duration { return s.p50 }))
		line(over+", 16 in flight, time per call", r.paired(over, atInflight, sample.perCall))
	}
	return lines
}

// perCall returns the time between two answers, which is the machine's cost of a call.
func (s sample) perCall() time.Duration { return time.Duration(float64(time.Second) / s.rate) }

// addition is the time of a call of mcp-go alone, and the time that Herald adds.
type addition struct{ bare, by time.Duration }

// paired compares the two ways within each round, under the same conditions, and returns the medians.
func (r *report) paired(over string, inflight int, of func(sample) time.Duration) addition {
	herald, bare := r.samples[cell{over, heraldWay, inflight}], r.samples[cell{over, bareWay, inflight}]
	var alone, by []time.Duration
	for i := range min(len(herald), len(bare)) {
		alone = append(alone, of(bare[i]))
		by = append(by, of(herald[i])-of(bare[i]))
	}
	return addition{bare: median(alone), by: median(by)}
}

// missed returns an error for the missed targets, or nil.
func (r *report) missed() error {
	var errs []error
	for _, t := range r.targets() {
		if !t.met {
			errs = append(errs, fmt.Errorf("missed: %s is %s, needed %s", t.what, t.measured, t.needed))
		}
	}
	return errors.Join(errs...)
}

func (r *report) markdown() string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	m := r.machine
	p("# Compared with the bridge\n")
	p("Written by `make bench-bridge` (`scripts/bench-bridge`); every number was measured by the run that wrote it.\n")
	p("- machine: %d cores, %s, Linux %s; Go %s, Node.js %s", m.Cores, m.CPU, m.Kernel, m.Go, r.node)
	p("- Herald at commit %s, %s, %s of measuring", m.Commit, m.Began.Format("2006-01-02 15:04 UTC"), r.ended.Sub(m.Began).Round(time.Second))
	p("- bridge: %s and %s, a client for every POST; agent: an mcp-go server whose tool's schema has `anyOf`", expressPackage, sdkPackage)
	p("- %d rounds of %s for each row, alternately, each with new processes; medians over the rounds. Herald and mcp-go alone call the same", r.rounds, r.time)
	p("  agent and alternate every %s, so that other load on the machine affects both equally. One program makes all calls.\n  Its heap is collected at %d MB, as a worker's is at 24 MB (GOGC %d instead of 100). Everything runs on these cores.\n", slice, r.heapGoal>>20, gcPercent)
	p("## Targets\n")
	p("| what | target | measured | |\n| --- | --- | --- | --- |")
	for _, t := range r.targets() {
		p("| %s | %s | %s | %s |", t.what, t.needed, t.measured, map[bool]string{true: "met", false: "**not met**"}[t.met])
	}
	p("\nThe rows named Herald use `internal/mcpcall` as a delivery does: it reads the tool list from memory, fits the arguments to the agent's")
	p("schema, validates them and makes the call.\n")
	p("## What Herald adds to a call of mcp-go alone\n")
	p("This table has no target. It compares the two within each round: the p50 of calls one at a time, and the time per call (1 / rate) at")
	p("16 in flight.\n")
	p("| over | added | to |\n| --- | ---: | ---: |")
	for _, line := range r.additions() {
		p("%s", line)
	}
	p("")
	p("## All rows\n")
	p("| over | in flight | way | calls/s | lowest to highest | p50 ms | p99 ms | × the bridge |\n| --- | ---: | --- | ---: | --- | ---: | ---: | ---: |")
	for _, over := range []string{overHTTP, overStdio} {
		for _, inflight := range inflights {
			for _, way := range ways {
				r.row(p, cell{over, way, inflight})
			}
		}
	}
	return s.String()
}

func (r *report) row(p func(string, ...any), c cell) {
	s := r.medians(c)
	low, high := s.rate, s.rate
	for _, one := range r.samples[c] {
		low, high = min(low, one.rate), max(high, one.rate)
	}
	bridge := r.medians(cell{c.transport, bridgeWay, c.inflight})
	p("| %s | %d | %s | %.0f | %.0f to %.0f | %s | %s | %.1f |", c.transport, c.inflight, c.way, s.rate, low, high, millis(s.p50), millis(s.p99), s.rate/bridge.rate)
}

func micros(d time.Duration) string {
	return fmt.Sprintf("%.0f µs", float64(d)/float64(time.Microsecond))
}
func millis(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// nodeVersion returns the version of Node.js, or "unknown".
func nodeVersion(ctx context.Context, node string) string {
	out, err := exec.CommandContext(ctx, node, "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
}
