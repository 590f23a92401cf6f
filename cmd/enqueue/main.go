// Command enqueue reads jobs as JSON Lines, as an indexer writes them, and commits them. Without an indexer `watch`,
// `backfill` and `tx` read the chain themselves (watch.go).
//
// It prints one line on stdout per input line, in order: "accepted|known|refused|conflict", then the delivery's id and
// key, or the field's path, the line's number and the problem. Empty lines are counted, but they have no answer. Every
// printed job is committed. Other messages and progress go to stderr. Exit codes: 0 done (known counts as done); 1
// failed, so run it again with the same input (jobs that were committed are known then); 2 misuse; 3 some lines were
// refused or in conflict.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/alecthomas/kong"
)

// Exit codes; the package comment describes them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisuse  = 2
	exitRefused = 3
)

type command struct {
	File     fileCommand     `cmd:"" default:"withargs" help:"Take jobs from files, one JSON object a line. What enqueue does without a command."`
	Watch    watchCommand    `cmd:"" help:"Follow a chain and enqueue the events of its registries, until it is stopped. A restart continues after the last block."`
	Backfill backfillCommand `cmd:"" help:"Enqueue the events of a range of blocks, then end. A restart continues after the last block."`
	Tx       txCommand       `cmd:"" help:"Enqueue the events of one transaction."`

	JSON    bool             `name:"json" help:"Answers as JSON Lines."`
	Timeout time.Duration    `help:"Limit for the database to answer. Reading afterwards has no limit. Default: ${default}." default:"10s" placeholder:"DURATION"`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

type fileCommand struct {
	Files []string `arg:"" optional:"" help:"Files of jobs, one JSON object a line; - is standard input. Without any: standard input." type:"path"`
}

// process holds the arguments, the environment and the streams of the process.
type process struct {
	args, environ  []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// task is the run of one command.
type task struct {
	process
	ctx     context.Context
	cfg     *config.Config
	json    bool          // --json
	wait    time.Duration // --timeout
	connect connector
}

// connector opens the intake. release closes everything that it opened.
type connector func(ctx context.Context, cfg *config.Config, wait time.Duration, stderr io.Writer) (s submitter,
	release func(), err error)

func main() {
	// The first signal stops the reading in an orderly way. The second one has its default effect.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, process{os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr}, connectIntake))
}

func run(ctx context.Context, p process, connect connector) (code int) {
	defer logging.RecoverFault("enqueue", p.stderr, &code, exitFailed)
	err := runCommand(ctx, p, connect)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errRefused):
		return exitRefused
	}
	fmt.Fprintln(p.stderr, "enqueue:", err)
	if _, ok := errors.AsType[misuse](err); ok {
		return exitMisuse
	}
	return exitFailed
}

func runCommand(ctx context.Context, p process, connect connector) error {
	var c command
	exited := false
	parser, err := kong.New(&c, kong.Name("enqueue"), kong.Writers(p.stdout, p.stderr),
		kong.Exit(func(int) { exited = true }),
		kong.Vars{"version": "enqueue " + buildinfo.Version()},
		kong.Description(
			"Enqueues ERC-8004 feedback jobs (JSON Lines). Settings are environment variables: see `worker config`."))
	if err != nil {
		return misuse{err}
	}
	chosen, err := parser.Parse(p.args)
	switch {
	case exited: // --help, --version
		return nil
	case err != nil:
		return misuse{err}
	case c.Timeout <= 0:
		return misuse{fmt.Errorf("--timeout %s is not longer than 0s", c.Timeout)}
	}
	cfg, err := config.Load(p.environ)
	if err != nil {
		return misuse{fmt.Errorf("the configuration has faults:\n%w", err)}
	}
	return chosen.Run(&task{p, ctx, cfg, c.JSON, c.Timeout, connect})
}

// errRefused ends a command that is complete, but some jobs were refused or are in conflict.
var errRefused = errors.New("some jobs were refused or are in conflict")

// misuse is an error of the command line.
type misuse struct{ error }

// Run enqueues the lines of files.
func (c *fileCommand) Run(t *task) error {
	in, err := openInput(c.Files, t.stdin)
	if err != nil {
		return misuse{err}
	}
	defer func() { _ = in.Close() }()
	intake, release, err := t.connect(t.ctx, t.cfg, t.wait, t.stderr)
	if err != nil {
		return err
	}
	defer release()
	answers, err := submitJobs(t.ctx, intake, in.sources, newPrinter(t.stdout, t.json), newInputBar(t.stderr, in.size))
	answers.printTally(t.stderr)
	if err == nil && answers.countFailed() > 0 {
		err = errRefused
	}
	return err
}

// connectIntake opens the intake. Without Redis, jobs wait in Postgres for a worker. wait bounds the wait for Postgres.
func connectIntake(ctx context.Context, cfg *config.Config, wait time.Duration,
	stderr io.Writer) (submitter, func(), error) {
	log := logging.New(stderr, cfg.LogLevel, cfg.LogFormat)
	queue.LogDriver(log)
	c := &connection{}
	intake, err := c.openIntake(ctx, cfg, wait, log)
	if err != nil {
		c.close()
		return nil, nil, err
	}
	return intake, c.close, nil
}

// connection holds everything that open opened, in the order of opening.
type connection struct {
	store      *store.Store
	sealer     *secret.Keyset
	dispatcher *dispatch.Dispatcher // nil: Redis is not available
	policies   *backend.PolicyFile
	undo       []func()
}

// close closes everything that open opened, even after a partial open.
func (c *connection) close() {
	for _, undo := range slices.Backward(c.undo) {
		undo()
	}
}

func (c *connection) openIntake(ctx context.Context, cfg *config.Config, wait time.Duration,
	log *slog.Logger) (*intake.Intake, error) {
	if err := c.open(ctx, cfg, wait, log); err != nil {
		return nil, err
	}
	ic := intake.Config{Ledger: c.store, Sealer: c.compareKeysets(ctx), Limits: backend.JobLimits(cfg), Logger: log}
	if c.dispatcher != nil {
		ic.Dispatcher = c.dispatcher
	}
	return intake.New(ic)
}

// comparedKeyset is a keyset that encrypts nothing if a running worker could not decrypt it. Then problem names the
// worker.
type comparedKeyset struct {
	*secret.Keyset
	problem error
}

func (k comparedKeyset) Seal(plain []byte, b secret.Binding) ([]byte, error) {
	if k.problem != nil {
		return nil, k.problem
	}
	return k.Keyset.Seal(plain, b)
}

// compareKeysets compares the keyset with those of the running workers. If none runs, every job is accepted, because
// workers may start later. Jobs without secret headers are always accepted: they need no key.
func (c *connection) compareKeysets(ctx context.Context) comparedKeyset {
	k := comparedKeyset{Keyset: c.sealer}
	workers, _ := records.New(c.store).Workers(ctx) // if Postgres fails, so does the commit of the jobs
	for _, w := range workers {
		if id := c.sealer.PrimaryID(); !w.HasKey(id) {
			k.problem = fmt.Errorf("the worker on %s cannot decrypt them: its keyset lacks key %d, with which this "+
				"one encrypts. Set HERALD_KEYSET to that of the workers", text.Printable(w.Host), id)
		}
	}
	return k
}

func (c *connection) open(ctx context.Context, cfg *config.Config, wait time.Duration, log *slog.Logger) error {
	var err error
	if c.policies, err = backend.OpenPolicyFile(cfg, log, func() {}); err != nil {
		return err
	}
	b, err := backend.Attach(ctx, cfg, wait, log)
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func() { b.Stop(ctx, log) })
	if c.store, err = backend.OpenStore(ctx, cfg, b, wait, false, log); err != nil {
		return err
	}
	c.undo = append(c.undo, c.store.Close)
	c.store.UseOrder(c.policies.Order)
	if c.sealer, err = b.Keyset(cfg, log); err != nil || b.RedisURL.IsZero() {
		return err
	}
	q, err := queue.Open(queue.Config{URL: b.RedisURL, Logger: log})
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func() { _ = q.Close() })
	c.dispatcher, err = dispatch.New(q, log)
	return err
}

// input is a sequence of files, or standard input.
type input struct {
	sources []intake.Source
	files   []*os.File
	size    int64 // in bytes; 0 if unknown
}

func openInput(paths []string, stdin io.Reader) (*input, error) {
	if len(paths) == 0 {
		paths = []string{"-"}
	}
	in := &input{}
	known := true
	for _, path := range paths {
		r := stdin
		if path != "-" {
			f, err := os.Open(path)
			if err != nil {
				return nil, errors.Join(err, in.Close())
			}
			in.files = append(in.files, f)
			r = f
		}
		size, err := sizeOf(r)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), in.Close())
		}
		known = known && size > 0
		in.size += size
		name := ""
		if len(paths) > 1 {
			name = path
		}
		in.sources = append(in.sources, intake.Source{Name: name, Reader: r})
	}
	if !known {
		in.size = 0
	}
	return in, nil
}

// sizeOf returns the size of a regular file. It returns 0 for pipes and terminals.
func sizeOf(r io.Reader) (int64, error) {
	f, ok := r.(*os.File)
	if !ok {
		return 0, nil
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		return 0, err
	case st.IsDir():
		return 0, errors.New("is a folder: name the files in it")
	case !st.Mode().IsRegular():
		return 0, nil
	}
	return st.Size(), nil
}

// Close closes the files.
func (in *input) Close() error {
	var errs []error
	for _, f := range in.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
