// Command worker delivers on-chain feedback to agents, and manages deliveries, agents, tokens and keys.
package main

import (
	"cmp"
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

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/alecthomas/kong"
)

// Exit codes: the command failed, the command line or a setting is invalid, or some items were left unchanged.
const (
	exitFailed = 1
	exitMisuse = 2
	exitLeft   = 3
)

// commands is the command line. Settings come from environment variables, which `worker config` lists.
type commands struct {
	Serve      serveCmd      `cmd:"" default:"withargs" help:"Take tasks and deliver (default)."`
	Doctor     doctorCmd     `cmd:"" help:"Check everything the worker needs, one line each."`
	Config     configCmd     `cmd:"" help:"Show every setting, its effective value and where it came from."`
	Migrate    migrateCmd    `cmd:"" help:"Apply pending migrations, or list them."`
	Keys       keysCmd       `cmd:"" help:"Keys that encrypt secrets at rest."`
	Token      tokenCmd      `cmd:"" help:"Tokens that agents want; each is sent to the origin it is stored for and nowhere else."`
	Agent      agentCmd      `cmd:"" help:"Show agents, hold and release their deliveries, set their policy."`
	Policy     policyCmd     `cmd:"" help:"Test policies, which decide which events agents receive."`
	Chain      chainCmd      `cmd:"" help:"Show the chains that Herald reads."`
	Find       findCmd       `cmd:"" help:"Find a delivery, transaction, client or agent by anything that names it."`
	Delivery   deliveryCmd   `cmd:"" help:"Show, replay and cancel deliveries."`
	APIToken   apiTokenCmd   `cmd:"" name:"api-token" help:"Tokens with which programs and people use the HTTP API and the pages."`
	SigningKey signingKeyCmd `cmd:"" name:"signing-key" help:"Keys with which requests to agents are signed (HERALD_PUBLIC_URL)."`
	Embedded   embeddedCmd   `cmd:"" hidden:"" help:"Fetch the programs of the embedded services."`

	Timeout time.Duration    `help:"How long the database may take to answer a command, and a list or a page of it to be read; a command whose database stops answering ends within a second of it. serve waits as long as it takes. Default: ${default}." default:"10s" placeholder:"DURATION"`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

// command holds the context, the streams and the settings of a command.
type command struct {
	ctx context.Context
	cfg *config.Config
	log *slog.Logger
	in  io.Reader
	out io.Writer
	err io.Writer                          // progress and warnings; results go to out
	tty func() (io.ReadWriteCloser, error) // opens the person's terminal; an error if there is none

	backend operator.Backend // nil: from the settings
	environ []string         // as os.Environ returns it

	timeout time.Duration // --timeout
	faulty  bool          // cfg is invalid; only commands that create keys run then
}

func main() {
	transport.RunSupervisor()
	// The first signal requests an orderly stop. The second one has its default effect.
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		stops = append(stops, syscall.SIGHUP)
		// When a terminal is closed, both the shell and the kernel send it. So the second one has no effect.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stops...)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return runCommand(&command{ctx: ctx, in: os.Stdin, out: stdout, err: stderr, tty: openTerminal}, args, environ)
}

// runCommand runs a command line with a's context and streams.
func runCommand(a *command, args, environ []string) (code int) {
	defer logging.RecoverFault("worker", a.err, &code, exitFailed)
	err := a.runCommand(args, environ)
	if err == nil {
		return 0
	}
	fmt.Fprintln(a.err, "worker:", err)
	if _, ok := errors.AsType[*operator.MisuseError](err); ok {
		return exitMisuse
	}
	if _, ok := errors.AsType[*operator.LeftError](err); ok {
		return exitLeft
	}
	return exitFailed
}

func (a *command) runCommand(args, environ []string) error {
	var c commands
	exited := false
	parser, err := kong.New(&c, kong.Name("worker"), kong.Writers(a.out, a.err),
		kong.Exit(func(int) { exited = true }),
		kong.Vars{"version": "worker " + buildinfo.Version()},
		kong.Description("Delivers ERC-8004 feedback to the agents it is about. "+
			"Settings are environment variables: see `worker config`."))
	if err != nil {
		return operator.NewMisuse("%v", err)
	}
	k, err := parser.Parse(args)
	switch {
	case exited: // --help, --version
		return nil
	case err != nil:
		return operator.NewMisuse("%v", explainUnknown(parser.Model, args, withoutToken(args, err)))
	case c.Timeout <= 0:
		return operator.NewMisuse("--timeout %s is not longer than 0s", c.Timeout)
	}
	cfg, err := config.Load(environ)
	if err != nil && !makesKeys(k.Command()) {
		return operator.NewMisuse("the configuration has faults:\n%v", err)
	}
	a.faulty, a.environ = err != nil, environ
	a.cfg, a.timeout, a.log = cfg, c.Timeout, logging.New(a.err, cfg.LogLevel, cfg.LogFormat)
	if a.backend == nil {
		a.backend = attached{a}
	}
	queue.LogDriver(a.log)
	out := &output{Writer: a.out}
	a.out = out
	err = k.Run(a)
	return cmp.Or(err, out.err)
}

// explainUnknown returns err with the command that was probably meant, if the command line begins with an unknown one.
func explainUnknown(model *kong.Application, args []string, err error) error {
	if len(args) == 0 || err.Error() != "unexpected argument "+args[0] {
		return err
	}
	var names []string
	for _, c := range model.Children {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	switch near := text.FindNearest(args[0], names, 2); {
	case args[0] == "watch":
		return errors.New(
			"there is no command watch: `enqueue watch CHAIN` follows a chain, and so does a worker with HERALD_WATCH")
	case args[0] == "backfill" || args[0] == "tx" || args[0] == "enqueue":
		return fmt.Errorf(
			"there is no command %s: the program enqueue takes jobs and reads chains, see `enqueue --help`", args[0])
	case near != "":
		return fmt.Errorf("there is no command %.40q: did you mean %s?", args[0], near)
	}
	return fmt.Errorf("there is no command %.40q: `worker --help` lists them", args[0])
}

// makesKeys reports whether a command prints a keyset and needs no connection. Such commands run even with an invalid
// configuration, because a valid one may need the key first.
func makesKeys(command string) bool {
	return slices.Contains([]string{"keys init", "keys rotate add"}, command)
}
