//go:build linux && chain

// Command bench-chain measures how many events per second Herald accepts, from a file and from a chain, and writes a
// report:
//
//	bench-chain -o docs/bench-chain.md     all measurements
//	bench-chain -events 20000 -only lines  a quick check that it works
//
// The programs run as processes on their own Postgres and Redis (internal/testing/trial). The chain is a pinned anvil, or a
// node in this process that answers from raw logs, which is as fast as a node can be. All of them share the machine's
// cores. Every number in the file is measured by the run that writes it. The exit status is 1 if a target is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/machine"
)

// options are the command line's flags.
type options struct {
	out    string
	only   string
	events int
	long   int // number of events
	blocks int
	logs   string
	rounds int
}

// The parts, in the order in which they run.
var parts = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"cost", (*bench).measureCost},
	{"lines", (*bench).measureLines},
	{"raw", (*bench).measureRaw},
	{"anvil", (*bench).measureAnvil},
	{"latency", (*bench).measureLatency},
	{"long", (*bench).measureLong},
}

func main() {
	var o options
	flag.StringVar(&o.out, "o", "", "the `file` to write; without: standard output only")
	flag.StringVar(&o.only, "only", "cost,lines,raw,anvil,latency,long", "measure only these, separated by commas")
	flag.IntVar(&o.events, "events", 30_000, "events, or lines, of one run")
	flag.IntVar(&o.long, "long", longEvents, "events, or lines, of the runs whose memory is watched")
	flag.IntVar(&o.blocks, "latency", 40, "blocks whose latency is measured")
	flag.StringVar(&o.logs, "logs", "", "the `folder` for what the programs say; empty: one that goes with the run")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured; medians count. What is slow and needed only for comparison is measured once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-chain:", err)
		os.Exit(1)
	}
}

// bench holds the data that all parts share.
type bench struct {
	options
	dir      string
	programs trial.Programs
	postgres *trial.Postgres
	report   report
	sites    int
}

func run(ctx context.Context, o options) (err error) {
	b := &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "herald-bench-chain-"); err != nil {
		return fmt.Errorf("make a scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.logs == "" {
		b.logs = filepath.Join(b.dir, "logs")
	}
	// Postgres may run as another user.
	if err := errors.Join(os.Chmod(b.dir, 0o711), os.MkdirAll(b.logs, 0o755)); err != nil {
		return err
	}
	b.say("building Herald, starting Postgres")
	if b.programs, err = trial.Build(ctx, ".", filepath.Join(b.dir, "bin")); err != nil {
		return err
	}
	if b.postgres, err = trial.StartPostgres(ctx, b.dir, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.postgres.Close(context.WithoutCancel(ctx))) }()
	b.report.machine, b.report.usual = machine.Read(ctx), o.events
	wanted := strings.Split(o.only, ",")
	for _, p := range parts {
		if slices.Contains(wanted, p.name) {
			if err := p.run(b, ctx); err != nil {
				return fmt.Errorf("measure %s: %w", p.name, err)
			}
		}
	}
	text := b.report.markdown()
	fmt.Print(text)
	if o.out != "" {
		if err := write(o.out, text); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return b.report.missed()
}

// kept is the line below which the file is written by hand.
const kept = "<!-- The rest of this page is written by hand. bench-chain keeps it. -->"

// write writes the report into the file, and keeps the handwritten part below it.
func write(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, byHand, _ := strings.Cut(string(old), kept+"\n")
	return os.WriteFile(path, []byte(text+"\n"+kept+"\n"+byHand), 0o644)
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// onSite runs f on a Herald with an empty database and an empty Redis.
func (b *bench) onSite(ctx context.Context, f func(*trial.Site) error) (err error) {
	b.sites++
	name := fmt.Sprintf("bench_%d", b.sites)
	s, err := trial.Open(ctx, trial.Config{Programs: b.programs, Postgres: b.postgres, Database: name,
		Logs: filepath.Join(b.logs, name)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f(s)
}

// measured is the result of one run of a program.
type measured struct {
	events  int
	took    time.Duration
	start   int64 // resident bytes after a tenth of the time
	peak    int64
	end     int64 // the last sample
	samples []int64
}

func (m measured) rate() float64 { return float64(m.events) / m.took.Seconds() }

// runEnqueue runs enqueue to its end and samples its memory. It also returns the path of its output.
func (b *bench) runEnqueue(ctx context.Context, s *trial.Site, events int, env []string,
	args ...string) (m measured, log string, err error) {
	began := time.Now()
	p, err := s.StartEnqueue("enqueue", env, args...)
	if err != nil {
		return m, "", err
	}
	m.events = events
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-p.Done():
			ended = true
		case <-ctx.Done():
			return m, "", errors.Join(context.Cause(ctx), p.Kill())
		case <-tick.C:
			if bytes, err := p.ResidentBytes(); err == nil && bytes > 0 {
				m.samples = append(m.samples, bytes)
			}
		}
	}
	m.took = time.Since(began)
	if n := len(m.samples); n > 0 {
		m.start, m.peak, m.end = m.samples[n/10], slices.Max(m.samples), m.samples[n-1]
	}
	return m, p.Log(), p.Wait(ctx)
}

// repeat runs a measurement in each round.
func (b *bench) repeat(measure func() error) error {
	for range b.rounds {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

// diskOfEvent is the disk space that an event needs during a run, as measured: its row and the row's indexes,
// Postgres's log, its line in a file, and the answer.
const diskOfEvent = 5 << 10

// measureLong measures runs that are long enough to show whether the memory stays flat. It checks the disk space
// first, because a full disk would stop other programs on this machine.
func (b *bench) measureLong(ctx context.Context) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &disk); err != nil {
		return fmt.Errorf("ask how much room there is: %w", err)
	}
	if room := disk.Bavail * uint64(disk.Bsize); room < uint64(b.long)*diskOfEvent {
		return fmt.Errorf("%d events need %d MB in %s, which has %d: set TMPDIR, or measure fewer with -long", b.long,
			b.long*diskOfEvent>>20, b.dir, room>>20)
	}
	if err := b.runLines(ctx, b.long); err != nil {
		return err
	}
	return b.runRaw(ctx, b.long)
}

// checkRows returns an error unless the database contains all events, because the speed of a run that lost events is
// no result.
func checkRows(ctx context.Context, s *trial.Site, want int) error {
	var n int
	err := s.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT count(*) FROM herald.deliveries`).Scan(&n)
	})
	if err == nil && n != want {
		err = fmt.Errorf("%d deliveries of %d events", n, want)
	}
	return err
}

// add records a run.
func (b *bench) add(way string, m measured) {
	b.say("%s: %d events, %.0f/s, resident %d to %d MB", way, m.events, m.rate(), m.start>>20, m.peak>>20)
	b.report.runs = append(b.report.runs, wayRun{way, m})
}
