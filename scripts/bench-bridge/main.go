//go:build linux

// Command bench-bridge compares Herald's MCP calls with the bridge that they replace, in one run on one machine, and
// writes a report:
//
//	bench-bridge -o docs/bench-bridge.md     9 minutes
//	bench-bridge -rounds 1 -time 1s          a quick check that it works
//	bench-bridge -alone                      prints the calls per second of the bridge over HTTP, for scripts/bench
//
// It calls the same agent in three ways, over streamable HTTP and over stdio. The bridge (Node.js, bridge.mjs) uses a
// new client for every call. Herald uses internal/mcpcall as a delivery does: it takes the tool list from memory,
// fits the arguments to the agent's schema, validates them, and calls. mcp-go alone uses one client that is kept. The
// ways take turns, round after round, each with a new agent process. The results are medians over the rounds. Herald
// and mcp-go alone share an agent and alternate five times a second, so that other load on the machine affects both:
// this makes a difference of microseconds measurable. Agents, bridge and load share the machine's cores.
//
// It exits with 1 if a target is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/agentherald/herald/scripts/machine"

	_ "embed"
)

// The packages of the bridge.
const (
	expressPackage = "express@5.3.0"
	sdkPackage     = "@modelcontextprotocol/sdk@1.32.2"
)

//go:embed bridge.mjs
var bridgeSource []byte

//go:embed agent/schema.json
var agentSchema []byte

// gcPercent lets the heap of this program, 4 MB of live data, grow to about 24 MB between two collections, like that
// of an idle worker with 12 MB (go_memstats_next_gc_bytes). With Go's default of 100 it would collect several times
// as often as a worker. It applies to all ways, except to the bridge and the agents, which are other processes.
const gcPercent = 400

func heapGoal() uint64 {
	goal := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
	metrics.Read(goal)
	return goal[0].Value.Uint64()
}

// options are the command line's flags.
type options struct {
	out    string
	rounds int
	time   time.Duration
	keep   bool
	alone  bool
}

func main() {
	var o options
	flag.StringVar(&o.out, "o", "", "the `file` to write; without: standard output only")
	flag.IntVar(&o.rounds, "rounds", 9, "how often each way has its turn; what a call adds differs by microseconds from one to the next")
	flag.DurationVar(&o.time, "time", 4*time.Second, "how long a turn is measured")
	flag.BoolVar(&o.alone, "alone", false, "measure only the bridge over HTTP with 16 in flight, and print its calls a second")
	flag.BoolVar(&o.keep, "keep", false, "keep what the processes said, and tell where")
	flag.Parse()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-bridge:", err)
		os.Exit(1)
	}
}

// bench holds the data that all turns share.
type bench struct {
	options
	folder string // for logs and built programs
	agent  string // path of the agent program
	node   string
	bridge string
	turns  int // number of turns so far, for the names of the logs
}

func run(ctx context.Context, o options) (err error) {
	if o.rounds < 1 || o.time < 100*time.Millisecond || flag.NArg() > 0 {
		return errors.New("-rounds must be at least 1, -time at least 100ms, and there are no arguments")
	}
	b := &bench{options: o}
	if b.folder, err = os.MkdirTemp("", "herald-bench-bridge-"); err != nil {
		return fmt.Errorf("make a scratch folder: %w", err)
	}
	defer func() {
		if o.keep {
			fmt.Fprintln(os.Stderr, "bench-bridge: the processes' words are in", b.folder)
			return
		}
		err = errors.Join(err, os.RemoveAll(b.folder))
	}()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if o.alone {
		return b.measureAlone(ctx)
	}
	r := report{machine: machine.Read(ctx), node: nodeVersion(ctx, b.node), rounds: o.rounds, time: o.time}
	for round := range o.rounds {
		if err := b.round(ctx, round, &r); err != nil {
			return err
		}
	}
	r.ended, r.heapGoal = time.Now(), heapGoal()
	text := r.markdown()
	fmt.Print(text)
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return r.missed()
}

// measureAlone prints the median rate of the bridge over HTTP.
func (b *bench) measureAlone(ctx context.Context) error {
	var rates []float64
	for range b.rounds {
		samples, err := b.turn(ctx, overHTTP, atInflight, []string{bridgeWay})
		if err != nil {
			return err
		}
		rates = append(rates, samples[0].rate)
	}
	_, err := fmt.Printf("%.1f\n", median(rates))
	return err
}

// prepare builds the agent and installs the bridge.
func (b *bench) prepare(ctx context.Context) (err error) {
	if err := reallyValidates(); err != nil {
		return err
	}
	b.say("building the agent, installing the bridge")
	b.agent = filepath.Join(b.folder, "agent")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", b.agent, "./scripts/bench-bridge/agent")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent (run this at the top of the repository): %w\n%s", err, out)
	}
	if b.node, err = npm.Node(ctx); err != nil {
		return err
	}
	packages, err := npm.Install(ctx, expressPackage, sdkPackage)
	if err != nil {
		return err
	}
	b.bridge = filepath.Join(b.folder, "bridge.mjs")
	// Node looks for packages next to the file that imports them.
	return errors.Join(os.WriteFile(b.bridge, bridgeSource, 0o644), os.Symlink(packages.Path(""), filepath.Join(b.folder, "node_modules")))
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format(time.TimeOnly)+" "+format+"\n", args...)
}
