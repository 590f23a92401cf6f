//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/agentherald/herald/scripts/script"

	_ "embed"
)

// bridgeResult is the rate of the Node bridge that Herald replaces, without a database.
type bridgeResult struct {
	rate float64 // calls per second; 0 if it was not measured
	why  string  // why it was not measured
}

const (
	bridgeTimeout = 10 * time.Minute // its packages may have to be installed
	bridgeRounds  = 3
	bridgeCalls   = 600 // calls of one round
	timesBridge   = 8.0 // the target
)

// The packages of the bridge.
const (
	expressPackage = "express@5.3.0"
	sdkPackage     = "@modelcontextprotocol/sdk@1.32.2"
)

//go:embed bridge.mjs
var bridgeSource []byte

// measureBridge measures the calls of the bridge. If Node.js or npm is missing, the report contains the reason.
func (b *bench) measureBridge(ctx context.Context) (out bridgeResult) {
	say("the bridge without a database, %d in flight", targetInflight)
	ctx, cancel := context.WithTimeout(ctx, bridgeTimeout)
	defer cancel()
	if err := script.Try(func() { out.rate = b.callThroughBridge(ctx) }); err != nil {
		out.why = err.Error()
	}
	say("  %.0f calls a second %s", out.rate, out.why)
	return out
}

// callThroughBridge starts the bridge and an agent, and returns the median rate of the rounds.
func (b *bench) callThroughBridge(ctx context.Context) float64 {
	bridge := b.startBridge(ctx)
	defer script.Close(bridge.End)
	agents := script.Must(trial.StartAgents(1))
	defer agents.Close()
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var address string
	script.Check(bridge.Await(wait, pollRows, "its address", func() (bool, error) {
		for line, err := range bridge.Lines() {
			address = line.Message
			return err == nil, err
		}
		return false, nil
	}))
	call := func(ctx context.Context, i int) { postToBridge(ctx, address, agents, i) }
	together(ctx, targetInflight, 4*targetInflight, call)
	var rounds []time.Duration
	for range bridgeRounds {
		began := time.Now()
		together(ctx, targetInflight, bridgeCalls, call)
		rounds = append(rounds, time.Since(began))
	}
	return bridgeCalls / trial.Quantile(rounds, .5).Seconds()
}

// postToBridge lets the bridge call an agent with feedback number i.
func postToBridge(ctx context.Context, address string, agents *trial.Agents, i int) {
	j := readJob(agents, i)
	body := script.Must(json.Marshal(map[string]any{"url": j.Action.Endpoint.URL, "tool": "agent.receiveFeedback",
		"arguments": j.Arguments(job.File{Verification: "not_given"}, j.ID().String()), "meta": metaOf(j)}))
	req := script.Must(http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body)))
	req.Header.Set("Content-Type", "application/json")
	res := script.Must(http.DefaultClient.Do(req))
	defer script.Close(res.Body.Close)
	answer := script.Must(io.ReadAll(io.LimitReader(res.Body, 1<<20)))
	if res.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("thank you")) {
		script.Fail("the bridge answered %s: %s", res.Status, answer)
	}
}

// startBridge runs the bridge with its packages from npm.
func (s *services) startBridge(ctx context.Context) *trial.Process {
	node, installed := script.Must(npm.Node(ctx)), script.Must(npm.Install(ctx, expressPackage, sdkPackage))
	folder := filepath.Join(s.data, "bridge")
	program := filepath.Join(folder, "bridge.mjs")
	log := filepath.Join(s.logs, "bridge.log")
	// Node looks for packages next to the file that imports them. The log is emptied: it may be that of an earlier run.
	script.Check(errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(program, bridgeSource, 0o644), os.WriteFile(log, nil, 0o644),
		os.Symlink(installed.Path(""), filepath.Join(folder, "node_modules"))))
	return script.Must(trial.Program{Name: "bridge", Path: node, Args: []string{program}, Env: npm.Environment(), Log: log}.Start())
}

// bridgeTarget compares the slowest run on Redis with the bridge.
func (r report) bridgeTarget() target {
	t := compare("end to end on Redis, compared with the per-call Node bridge, which has no database", fmt.Sprintf("≥ %.0f × its calls", timesBridge),
		timesBridge, r.slowest(realRedis, targetAgents, math.MaxInt), loadResult{rate: r.bridge.rate})
	if r.bridge.why != "" {
		t.measured = "the bridge does not run here, see below"
	}
	return t
}

func (r report) bridgeText(p func(string, ...any)) {
	if r.bridge == (bridgeResult{}) {
		return
	}
	p("## Compared with the bridge\n")
	if r.bridge.why != "" {
		p("The per-call Node bridge of [the comparison](bench-bridge.md) was not measured here: %s\n",
			strings.Join(strings.Fields(r.bridge.why), " "))
		return
	}
	p("The per-call Node bridge of [the comparison](bench-bridge.md) makes %s calls on this machine with %d in flight. It has no queue and no",
		perS(r.bridge.rate), targetInflight)
	p("database, and keeps no state between calls. The table compares it with Herald end to end, %d in flight:\n", targetInflight)
	p("| queue | agents | per second | × the bridge |\n| --- | ---: | ---: | ---: |")
	for _, l := range r.loads {
		if l.inflight == targetInflight && l.agents >= targetAgents {
			p("| %s | %s | %s | %.1f |", l.queue, thousands(l.agents), perS(l.rate), l.rate/r.bridge.rate)
		}
	}
	p("")
}
