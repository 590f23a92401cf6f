// Command enqueue takes jobs as JSON Lines and commits them: what an indexer runs.
//
// It prints one line on stdout per input line, in order: "accepted|known|refused|conflict", then the delivery's id and key,
// or the field's path and what is wrong with it. Prose and progress go to stderr. Exit codes: 0 done (known counts as done),
// 1 failed and worth trying again (nothing is lost: known lines are known then), 2 misuse, 3 some lines were refused.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/service"
	"github.com/alecthomas/kong"
)

// Exit codes (DESIGN §10).
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisuse  = 2
	exitRefused = 3
)

type command struct {
	Files []string `arg:"" optional:"" help:"Files of jobs, one JSON object a line. Without any: standard input." type:"path"`
	JSON  bool     `name:"json" help:"Answers as JSON Lines."`
}

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)) }

func run(args, environ []string, stdin io.Reader, stdout io.Writer, stderr *os.File) int {
	var c command
	exited := -1
	parser, err := kong.New(&c, kong.Name("enqueue"), kong.Writers(stdout, stderr), kong.Exit(func(code int) { exited = code }),
		kong.Description("Enqueues ERC-8004 feedback jobs (JSON Lines). Settings are environment variables: see `worker config`."))
	if err != nil {
		fmt.Fprintln(stderr, "enqueue:", err)
		return exitMisuse
	}
	if _, err := parser.Parse(args); exited >= 0 {
		return exited
	} else if err != nil {
		fmt.Fprintln(stderr, "enqueue:", err)
		return exitMisuse
	}
	cfg, err := config.Load(environ)
	if err != nil {
		fmt.Fprintf(stderr, "enqueue: the configuration has faults:\n%v\n", err)
		return exitMisuse
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	in, err := open(c.Files, stdin)
	if err != nil {
		fmt.Fprintln(stderr, "enqueue:", err)
		return exitMisuse
	}
	defer in.Close()
	intake, release, err := connect(ctx, cfg, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "enqueue:", err)
		return exitFailed
	}
	defer release()

	tally, err := submit(ctx, intake, in, newPrinter(stdout, c.JSON), newProgress(stderr, in.size))
	tally.say(stderr)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "enqueue:", err)
		return exitFailed
	case tally.refused+tally.conflicts > 0:
		return exitRefused
	}
	return exitDone
}

// connect makes the intake. Without a Redis at hand rows wait in Postgres for a worker.
func connect(ctx context.Context, cfg *config.Config, stderr io.Writer) (_ *delivery.Intake, release func(), err error) {
	log := logging.New(stderr, cfg.LogLevel, cfg.LogFormat)
	var undo []func()
	release = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	b, err := service.Attach(ctx, cfg, log)
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := b.Close(stop); err != nil {
			log.Warn("the embedded database did not stop in order", "error", err)
		}
	})
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	st, err := service.OpenStore(wait, cfg, b, nil, log)
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, st.Close)
	keys, err := b.Keyset(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	ic := delivery.IntakeConfig{Ledger: st, Sealer: keys, Limits: service.JobLimits(cfg), Logger: log}
	if !b.RedisURL.IsZero() {
		q, err := queue.Open(queue.Config{URL: b.RedisURL, Logger: log})
		if err != nil {
			return nil, nil, err
		}
		undo = append(undo, func() { _ = q.Close() })
		if ic.Dispatcher, err = delivery.NewDispatcher(q, log); err != nil {
			return nil, nil, err
		}
	}
	intake, err := delivery.NewIntake(ic)
	return intake, release, err
}

// input is the files, one after the other, or standard input.
type input struct {
	io.Reader
	files []*os.File
	size  int64 // 0: not known
}

func open(paths []string, stdin io.Reader) (*input, error) {
	if len(paths) == 0 {
		return &input{Reader: stdin}, nil
	}
	in := &input{}
	var readers []io.Reader
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return nil, errors.Join(err, in.Close())
		}
		in.files = append(in.files, f)
		// An empty line is no job; it keeps the last line of one file apart from the first of the next.
		readers = append(readers, f, strings.NewReader("\n"))
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			in.size += st.Size()
		}
	}
	in.Reader = io.MultiReader(readers...)
	return in, nil
}

// Close closes the files.
func (in *input) Close() error {
	var errs []error
	for _, f := range in.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
