//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// bridgeResult is the rate of the Node bridge that Herald replaces, without a database.
type bridgeResult struct {
	rate float64 // calls per second; 0 if it was not measured
	why  string  // why it was not measured
}

const (
	bridgeTimeout = 10 * time.Minute // its packages may have to be installed
	timesBridge   = 8.0              // the target
)

// measureBridge runs scripts/bench-bridge, which measures its bridge. If Node.js or npm is missing, the report
// contains the reason.
func (b *bench) measureBridge(ctx context.Context) (out bridgeResult) {
	b.say("the bridge without a database, %d in flight", targetInflight)
	ctx, cancel := context.WithTimeout(ctx, bridgeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "-buildvcs=false", "./scripts/bench-bridge", "-alone", "-rounds", "3", "-time", "2s")
	cmd.WaitDelay = startTimeout
	var output bytes.Buffer
	cmd.Stderr = &output
	text, err := cmd.Output()
	if err == nil {
		out.rate, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(output.String()), "\n")
		out.why = fmt.Sprintf("%v: %s", err, lines[max(0, len(lines)-2)])
	}
	b.say("  %.0f calls a second %s", out.rate, out.why)
	return out
}

// bridgeTarget compares the slowest run on Redis with the bridge.
func (r report) bridgeTarget() target {
	t := target{"end to end on Redis, compared with the per-call Node bridge, which has no database", fmt.Sprintf("≥ %.0f × its calls", timesBridge), "",
		notMeasured}
	slowest := r.slowest(realRedis, targetAgents, math.MaxInt)
	switch {
	case r.bridge.why != "":
		t.measured = "the bridge does not run here, see below"
	case r.bridge.rate > 0 && slowest.rate > 0:
		times := slowest.rate / r.bridge.rate
		t.judge(fmt.Sprintf("%.1f × (%s against %s)", times, perS(slowest.rate), perS(r.bridge.rate)), times >= timesBridge)
	}
	return t
}

func (r report) bridgeText(p func(string, ...any)) {
	if r.bridge == (bridgeResult{}) {
		return
	}
	p("## Compared with the bridge\n")
	if r.bridge.why != "" {
		p("The per-call Node bridge of `make bench-bridge` was not measured here: %s\n", r.bridge.why)
		return
	}
	p("The per-call Node bridge of `make bench-bridge` makes %s calls on this machine with %d in flight. It has no queue and no", perS(r.bridge.rate), targetInflight)
	p("database, and keeps no state between calls. The table compares it with Herald end to end, %d in flight:\n", targetInflight)
	p("| queue | agents | per second | × the bridge |\n| --- | ---: | ---: | ---: |")
	for _, l := range r.loads {
		if l.inflight == targetInflight && l.agents >= targetAgents {
			p("| %s | %s | %s | %.1f |", l.queue, thousands(l.agents), perS(l.rate), l.rate/r.bridge.rate)
		}
	}
	p("")
}
