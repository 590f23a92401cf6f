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
	var err error
	if out.rate, err = b.callThroughBridge(ctx); err != nil {
		out.why = err.Error()
	}
	say("  %.0f calls a second %s", out.rate, out.why)
	return out
}

// callThroughBridge starts the bridge and an agent, and returns the median rate of the rounds.
func (b *bench) callThroughBridge(ctx context.Context) (rate float64, err error) {
	bridge, err := b.startBridge(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, bridge.End()) }()
	agents, err := trial.StartAgents(1)
	if err != nil {
		return 0, err
	}
	defer agents.Close()
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var address string
	err = bridge.Await(wait, pollRows, "its address", func() (bool, error) {
		for line, err := range bridge.Lines() {
			address = line.Message
			return err == nil, err
		}
		return false, nil
	})
	if err != nil {
		return 0, err
	}
	call := func(ctx context.Context, i int) error { return postToBridge(ctx, address, agents, i) }
	if err := together(ctx, targetInflight, 4*targetInflight, call); err != nil {
		return 0, fmt.Errorf("first calls: %w", err)
	}
	var rates []float64
	for range bridgeRounds {
		began := time.Now()
		if err := together(ctx, targetInflight, bridgeCalls, call); err != nil {
			return 0, err
		}
		rates = append(rates, perSecond(bridgeCalls, began))
	}
	return median(rates), nil
}

// postToBridge lets the bridge call an agent with feedback number i.
func postToBridge(ctx context.Context, address string, agents *trial.Agents, i int) error {
	j, err := readJob(agents, i)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"url": j.Action.Endpoint.URL, "tool": "agent.receiveFeedback",
		"arguments": j.Arguments(job.File{Verification: "not_given"}, j.ID().String()), "meta": metaOf(j)})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && (res.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("thank you"))) {
		err = fmt.Errorf("the bridge answered %s: %s", res.Status, answer)
	}
	return err
}

// startBridge runs the bridge with its packages from npm.
func (s *services) startBridge(ctx context.Context) (*trial.Process, error) {
	node, err := npm.Node(ctx)
	if err != nil {
		return nil, err
	}
	installed, err := npm.Install(ctx, expressPackage, sdkPackage)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(s.data, "bridge")
	script := filepath.Join(folder, "bridge.mjs")
	log := filepath.Join(s.logs, "bridge.log")
	// Node looks for packages next to the file that imports them. The log is emptied: it may be that of an earlier run.
	if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(script, bridgeSource, 0o644), os.WriteFile(log, nil, 0o644),
		os.Symlink(installed.Path(""), filepath.Join(folder, "node_modules"))); err != nil {
		return nil, err
	}
	return trial.Foreign{Name: "bridge", Path: node, Args: []string{script}, Env: npm.Environment(), Log: log}.Start()
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
