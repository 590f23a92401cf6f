// Command demo runs the whole path of on-chain feedback on one machine: a chain with the ERC-8004 registries, an IPFS
// gateway, agents over HTTP and stdio, Postgres, Redis and the worker. They form one process tree, which leaves nothing
// behind.
//
// The worker follows the chain itself (HERALD_WATCH). The demo plays each story of listStories, prints a time line and
// then a table, and keeps running. The file demo.env contains the environment with which commands find the demo, and
// `demo feedback` gives one of its agents more feedback. With --once it exits after the stories: status 0 if all ended
// as expected, else 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/app"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/alecthomas/kong"
)

// storiesTimeout bounds the stories on a busy machine. The longest story waits 15 s for a Retry-After.
const storiesTimeout = 5 * time.Minute

// command is the command line.
type command struct {
	EnvFile string `help:"File with the running demo's environment, for your shell. Default: demo.env in this program's folder." type:"path"`

	Run      runCmd      `cmd:"" default:"withargs" help:"Run the demo (default)."`
	Feedback feedbackCmd `cmd:"" help:"Give an agent of the running demo feedback of your own, on its chain."`
}

type runCmd struct {
	Once   bool   `help:"Exit after the stories: status 0 if all ended as expected, else 1."`
	Agent  string `help:"The example agent's binary. Default: agent in this program's folder." type:"path"`
	Listen string `help:"Address of the web UI. If it is in use, a free port." default:"127.0.0.1:8080"`

	envFile string
}

func main() {
	transport.RunSupervisor()
	os.Exit(runGuarded(os.Stderr, runCommandLine))
}

// runGuarded calls do and returns the exit status. It reports a panic as a failure.
func runGuarded(stderr io.Writer, do func() error) (code int) {
	defer logging.RecoverFault("demo", stderr, &code, 1)
	if err := do(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	return 0
}

// runCommandLine parses the command line and runs the command.
func runCommandLine() error {
	var c command
	k := kong.Parse(&c, kong.Name("demo"), kong.Exit(func(code int) { os.Exit(min(code, 2)) }), // as other commands
		kong.Description("An ERC-8004 feedback, all the way from the chain to the agent."))
	if c.EnvFile == "" {
		c.EnvFile = besideProgram("demo.env")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default effect of the second signal
	if k.Command() == "feedback" {
		return c.Feedback.giveFeedback(ctx, c.EnvFile, os.Stdout)
	}
	c.Run.envFile = c.EnvFile
	return c.Run.run(ctx, os.Stdout)
}

func (c *runCmd) run(ctx context.Context, out io.Writer) (err error) {
	tl := newTimeline(out)
	defer tl.close()
	queue.LogDriver(tl.logger())
	tl.printLine("Herald: on-chain feedback on its way to its agents. One process tree, nothing installed.\n")
	if own := chooseEnvFile(c.envFile); own != c.envFile {
		tl.printLine(fmt.Sprintf("Another demo runs, to which %s belongs. This one's environment will be in %s.\n",
			quotePath(c.envFile), quotePath(own)))
		c.envFile = own
	}
	w, err := newWorld(ctx, c.agentBinary(), tl)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	data, err := dataFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	cfg, err := config.Load(w.makeEnvironment(data, chooseAddress(c.Listen)))
	if err != nil {
		return err
	}
	return c.runStories(ctx, cfg, w, tl)
}

// runStories runs the worker and the stories concurrently. If one of them ends, it ends the other.
func (c *runCmd) runStories(ctx context.Context, cfg *config.Config, w *world, tl *timeline) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running := make(chan *app.Worker, 1)
	served := make(chan error, 1)
	go func() {
		err := app.Run(ctx, cfg, app.Options{Supervised: true, Logger: tl.logger(), Trace: tl.traceStep,
			Read: tl.tellRead, Running: func(s *app.Worker) { running <- s }})
		cancel(errors.New("the worker ended")) // ends the stories if they still run
		served <- err
	}()
	var failure error
	select {
	case worker := <-running:
		failure = c.tellStories(ctx, worker, w, tl)
	case err := <-served:
		return err
	}
	if failure == nil && !c.Once {
		c.printCommands(w, tl)
		<-ctx.Done()
	}
	cancel(context.Canceled)
	return errors.Join(failure, <-served)
}

// printCommands prints commands that work while the demo keeps running.
func (c *runCmd) printCommands(w *world, tl *timeline) {
	if w.envFile == "" { // openControl has printed the reason
		tl.printLine("\nStays up until Ctrl-C.")
		return
	}
	tl.printLine("\nStays up until Ctrl-C. In another terminal:")
	tl.printLine("  . " + quotePath(c.envFile) + "    # its environment, for commands")
	tl.printLine("  " + quotePath(besideProgram("worker")) + " delivery list")
	own := ""
	if c.envFile != besideProgram("demo.env") {
		own = " --env-file " + quotePath(c.envFile)
	}
	tl.printLine("  " + quotePath(besideProgram("demo")) + own +
		` feedback --agent 0 --value 9977 --decimals 2 --tag1 uptime --text "Fast."`)
}

func (c *runCmd) tellStories(ctx context.Context, worker *app.Worker, w *world, tl *timeline) error {
	tl.followWorker(worker)
	address := "http://" + worker.Addr
	token, err := worker.Operator.CreateAPIToken(ctx, "the demo", []string{"enqueue", "operate"}, 0, "the demo")
	if err != nil {
		return err
	}
	w.env = append(w.env, "API_URL="+address, "API_TOKEN="+token.Token)
	tl.printFact("overview", address+"/")
	tl.printFact("to change", "any user, password "+token.Token)
	tl.printFact("web UI", address+"/monitor/")
	tl.printFact("look inside", fmt.Sprintf(". %s; %s delivery list", quotePath(c.envFile),
		quotePath(besideProgram("worker"))))
	ctx, cancel := context.WithTimeout(ctx, storiesTimeout)
	defer cancel()
	if err := w.awaitFollower(ctx, worker.Store); err != nil {
		return err
	}
	stories, err := w.mineFeedback(ctx, tl)
	if err != nil {
		return err
	}
	if err := w.openControl(c.envFile, worker.Addr, tl); err != nil {
		return err
	}
	if err := w.mineReorgs(ctx, stories, tl); err != nil {
		return err
	}
	if err := tl.awaitStories(ctx, stories); err != nil {
		return err
	}
	if c.Once {
		tl.printLine("The demo ends now, and its pages with it. Without --once it stays up until Ctrl-C.")
		return nil
	}
	tl.printLine("The asynq web UI shows the same from the queue's side: " + address + "/monitor/")
	return nil
}

func (c *runCmd) agentBinary() string {
	if c.Agent != "" {
		return c.Agent
	}
	return besideProgram("agent")
}

// besideProgram returns the path of a program in the folder of this one.
func besideProgram(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// dataFolder creates the data folder of the embedded services. For root, servers of another user can pass through it.
func dataFolder() (string, error) {
	dir, err := os.MkdirTemp("", "herald-demo-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the demo's data: %w", err)
	}
	if os.Geteuid() == 0 {
		err = os.Chmod(dir, 0o711)
	}
	return dir, err
}

// chooseAddress returns address, or a free port of its host if the address is in use.
func chooseAddress(address string) string {
	l, err := net.Listen("tcp", address)
	if err == nil {
		_ = l.Close()
		return address
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return address
	}
	return net.JoinHostPort(host, "0")
}
