//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/testing/trial"
)

// tree is a checkout whose own bench measures its own worker.
type tree struct {
	name    string
	dir     string
	program string // its bench, compiled
	rates   []float64
}

// runTurns measures one row for this tree and for an older commit in turns, so that other load on the machine affects
// both, and prints the ratio. Each tree is measured by its own scripts/bench.
func runTurns(ctx context.Context, o options) (err error) {
	if o.turns < 1 || flag.NArg() > 0 {
		return errors.New("-turns must be at least 1, and there are no arguments")
	}
	folder, err := os.MkdirTemp("", "herald-bench-turns-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	hash, err := trial.ResolveCommit(ctx, ".", o.before)
	if err != nil {
		return fmt.Errorf("find the commit before (BEFORE=): %w", err)
	}
	before := &tree{name: "before, " + hash[:min(12, len(hash))], dir: filepath.Join(folder, "before")}
	now := &tree{name: "this tree, " + readCommit(ctx), dir: "."}
	if err := trial.Export(ctx, ".", hash, before.dir); err != nil {
		return err
	}
	for i, t := range []*tree{before, now} {
		t.program = filepath.Join(folder, fmt.Sprintf("bench-%d", i))
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", t.program, "./scripts/bench")
		build.Dir = t.dir
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the bench of %s: %w\n%s", t.name, err, out)
		}
	}
	for turn := range o.turns {
		pair := []*tree{before, now}
		if turn%2 == 1 {
			slices.Reverse(pair)
		}
		for _, t := range pair {
			rate, err := t.measure(ctx, o.n)
			if err != nil {
				return fmt.Errorf("turn %d of %s: %w", turn+1, t.name, err)
			}
			t.rates = append(t.rates, rate)
			fmt.Fprintf(os.Stderr, "turn %d of %d, %s: %s\n", turn+1, o.turns, t.name, perS(rate))
		}
	}
	_, err = fmt.Print(turnsTable(before, now, o.n))
	return err
}

// measure runs the row once.
func (t *tree) measure(ctx context.Context, n int) (float64, error) {
	cmd := exec.CommandContext(ctx, t.program, "-only", "load", "-match", fmt.Sprintf("^%s, %d in flight, %d agents, [0-9]+ deliveries$", realRedis, targetInflight, targetAgents),
		"-n", strconv.Itoa(n))
	cmd.Dir = t.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops the processes that it started
	cmd.WaitDelay = startTimeout
	var output strings.Builder
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, output.String()[max(0, output.Len()-2000):])
	}
	return rateIn(string(out))
}

// rateIn parses the row's rate from a report. All versions of the report have the same columns before it.
func rateIn(report string) (float64, error) {
	row := fmt.Sprintf("| %s | %d | %d |", realRedis, targetInflight, targetAgents)
	for line := range strings.Lines(report) {
		if rest, ok := strings.CutPrefix(line, row); ok {
			if cells := strings.Split(rest, "|"); len(cells) > 1 {
				return strconv.ParseFloat(strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(cells[1]), "/s"), ",", ""), 64)
			}
		}
	}
	return 0, fmt.Errorf("the report has no row %q:\n%s", row, report)
}

// turnsTable formats the results of the turns.
func turnsTable(before, now *tree, n int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %d in flight, %d agents, %d deliveries a turn, by turns:\n\n", realRedis, targetInflight, targetAgents, n)
	fmt.Fprintf(&s, "| | each turn | median | mean |\n| --- | --- | ---: | ---: |\n")
	for _, t := range []*tree{before, now} {
		var each []string
		for _, rate := range t.rates {
			each = append(each, perS(rate))
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", t.name, strings.Join(each, ", "), perS(median(t.rates)), perS(mean(t.rates)))
	}
	fmt.Fprintf(&s, "| ratio | | %.2f × | %.2f × |\n", median(now.rates)/median(before.rates), mean(now.rates)/mean(before.rates))
	return s.String()
}
