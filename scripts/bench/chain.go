//go:build linux && chain

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// chainOptions are the flags of bench chain.
type chainOptions struct {
	out    string
	only   string
	events int
	long   int // number of events
	blocks int
	rounds int
}

// chainParts are the measurements, in the order in which they run.
var chainParts = []struct {
	name string
	run  func(*chainBench, context.Context)
}{
	{"lines", (*chainBench).measureLines},
	{"raw", (*chainBench).measureRaw},
	{"anvil", (*chainBench).measureAnvil},
	{"latency", (*chainBench).measureLatency},
	{"long", (*chainBench).measureLong},
}

// chainBench measures how many events per second Herald accepts, from a file and from a chain. The chain is a pinned
// anvil, or a node in this process that answers from raw logs, which is as fast as a node can be.
type chainBench struct {
	chainOptions
	services
	report chainReport
	sites  int
}

// measureEvents reads the command line and makes the measurements of docs/bench-chain.md. A missed target is an error.
func measureEvents(ctx context.Context) {
	var b chainBench
	flags := flag.NewFlagSet("bench chain", flag.ExitOnError)
	flags.StringVar(&b.out, "o", "", "the `file` to write; without: standard output")
	flags.StringVar(&b.only, "only", "lines,raw,anvil,latency,long", "measure only these, separated by commas")
	flags.IntVar(&b.events, "events", 30_000, "events, or lines, of one run")
	flags.IntVar(&b.long, "long", longEvents, "events, or lines, of the runs whose memory is watched")
	flags.IntVar(&b.blocks, "latency", 40, "blocks whose latency is measured")
	flags.IntVar(&b.rounds, "rounds", 3,
		"how often each is measured; medians count. What is slow and needed only for comparison is measured once")
	_ = flags.Parse(os.Args[2:]) // it exits after an error
	b.report.machine, b.report.usual = readMachine(ctx), b.events
	withServices(ctx, func(s services) {
		b.services = s
		wanted := strings.Split(b.only, ",")
		for _, part := range chainParts {
			if slices.Contains(wanted, part.name) {
				part.run(&b, ctx)
			}
		}
		script.Check(write(b.out, b.report.markdown()))
	})
	script.Check(b.report.missed())
}

// withSite calls do with an empty Herald.
func (b *chainBench) withSite(ctx context.Context, do func(*trial.Site)) {
	b.sites++
	b.onSite(ctx, fmt.Sprintf("bench_%d", b.sites), do)
}

// measuredRun is the result of one run of a program.
type measuredRun struct {
	way    string
	events int
	took   time.Duration
	start  int64 // resident bytes after a tenth of the time
	peak   int64
	end    int64 // the last sample
}

func (m measuredRun) rate() float64 { return float64(m.events) / m.took.Seconds() }

// runEnqueue runs enqueue to its end, samples its memory, and adds the run to the report. It returns the path of its
// output. A run that did not store every event is an error, because its speed is no result.
func (b *chainBench) runEnqueue(ctx context.Context, s *trial.Site, m measuredRun, env []string, args ...string) (log string) {
	began := time.Now()
	p := script.Must(s.StartEnqueue("enqueue", env, args...))
	var samples []int64
	sample := time.NewTicker(100 * time.Millisecond)
	defer sample.Stop()
	for ended := false; !ended; {
		select {
		case <-p.Done():
			ended = true
		case <-ctx.Done():
			script.Check(errors.Join(context.Cause(ctx), p.Kill()))
		case <-sample.C:
			if now, err := p.Status(); err == nil && now.VmRSS > 0 {
				samples = append(samples, int64(now.VmRSS))
			}
		}
	}
	m.took = time.Since(began)
	script.Check(p.Wait(ctx))
	if n := len(samples); n > 0 {
		m.start, m.peak, m.end = samples[n/10], slices.Max(samples), samples[n-1]
	}
	b.add(m)
	if stored := script.Must(trial.QueryOne(ctx, s, pgx.RowTo[int], `SELECT count(*) FROM herald.deliveries`)); stored != m.events {
		script.Fail("%d deliveries of %d events", stored, m.events)
	}
	return p.Log()
}

// add records a run.
func (b *chainBench) add(m measuredRun) {
	say("%s: %d events, %.0f/s, resident %d to %d MB", m.way, m.events, m.rate(), m.start>>20, m.peak>>20)
	b.report.runs = append(b.report.runs, m)
}

// measureLines measures enqueue FILE.
func (b *chainBench) measureLines(ctx context.Context) {
	for range b.rounds {
		b.runLines(ctx, b.events)
	}
}

func (b *chainBench) runLines(ctx context.Context, n int) {
	path := b.writeLines(n)
	b.withSite(ctx, func(s *trial.Site) { b.runEnqueue(ctx, s, measuredRun{way: wayLines, events: n}, nil, path) })
}

// writeLines writes a file of jobs in an indexer's format.
func (b *chainBench) writeLines(n int) (path string) {
	path = filepath.Join(b.data, "jobs.ndjson")
	f := script.Must(os.Create(path))
	defer script.Close(f.Close)
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	for i := range n {
		agent, client, index := participants(i)
		script.Check(encoder.Encode(map[string]any{
			"type": "NewFeedback", "chainId": 8453, "agentId": fmt.Sprint(agent),
			"clientAddress": clientAddress(client), "feedbackIndex": index,
			"value": fmt.Sprint(i % 100), "valueDecimals": 0, "tag1": "uptime", "tag2": "",
			"endpoint": "https://agent.example/mcp", "feedbackURI": uriOf(i), "blockNumber": 41_700_000 + i/perBlock,
			"transactionHash": fmt.Sprintf("0x%064x", i/perBlock), "logIndex": i % perBlock}))
	}
	script.Check(w.Flush())
	return path
}

// diskOfEvent is the disk space that an event needs during a run, as measured: its row and the row's indexes,
// Postgres's log, its line in a file, and the answer.
const diskOfEvent = 5 << 10

// measureLong measures runs that are long enough to show whether the memory stays flat. It checks the disk space
// first, because a full disk would stop other programs on this machine.
func (b *chainBench) measureLong(ctx context.Context) {
	var disk syscall.Statfs_t
	script.Check(syscall.Statfs(b.data, &disk))
	if room := disk.Bavail * uint64(disk.Bsize); room < uint64(b.long)*diskOfEvent {
		script.Fail("%d events need %d MB in %s, which has %d: set TMPDIR, or measure fewer with -long", b.long,
			b.long*diskOfEvent>>20, b.data, room>>20)
	}
	b.runLines(ctx, b.long)
	b.runRaw(ctx, b.long)
}
