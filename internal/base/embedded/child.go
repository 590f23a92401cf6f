package embedded

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

const (
	// stopTimeout bounds a stop whose context has no deadline of its own.
	stopTimeout = 30 * time.Second
	// forceTimeout bounds the wait after the second, harder signal.
	forceTimeout = 5 * time.Second
	// tailSize is how much of a server's output is kept for error texts, in bytes.
	tailSize = 4 << 10
)

// program describes how to run a server or a tool.
type program struct {
	name    string // for logs: "postgres"
	path    string
	args    []string
	dir     string    // working folder; "": /, because the account may not be able to enter this process's folder
	env     []string  // nil: a short environment
	stdout  io.Writer // nil: with the errors
	libs    []string  // folders for LD_LIBRARY_PATH
	acct    account
	onDeath syscall.Signal // signal that the kernel sends when this process dies
	lock    *Lock          // inherited: it is held until the program and all its children have ended; nil: none
	logger  *slog.Logger
}

func (p program) newCommand(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Dir = cmp.Or(p.dir, "/")
	if cmd.Env = p.env; cmd.Env == nil {
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	}
	if len(p.libs) > 0 {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+strings.Join(p.libs, ":"))
	}
	if p.lock != nil {
		cmd.ExtraFiles = []*os.File{p.lock.f}
	}
	cmd.SysProcAttr = p.acct.processAttr(p.onDeath)
	// Wait must not block on a grandchild that keeps the pipe open.
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// run runs a tool and returns the end of its output. When ctx ends, it kills the whole process group.
func (p program) run(ctx context.Context) (string, error) {
	out := &tail{}
	err := onOwnThread(func() error {
		cmd := p.newCommand(ctx)
		cmd.Stdout, cmd.Stderr = out, out
		if p.stdout != nil {
			cmd.Stdout = p.stdout
		}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		return cmd.Run()
	})
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}

// onOwnThread runs f on a locked thread. The kernel ties Pdeathsig to the thread that started the child. Without
// the lock, another goroutine could lock that thread and exit, which ends the thread.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		result <- f()
	}()
	return <-result
}

// child is a running server.
type child struct {
	name   string
	cmd    *exec.Cmd
	tail   *tail
	done   chan struct{} // closed when the process has ended and its output is read
	err    error         // result of the process; valid after done
	logger *slog.Logger

	serving atomic.Bool // ready, and not asked to stop: ending now is an error
}

// start starts a server. The goroutine stays on one thread until the server has ended.
func (p program) start() (*child, error) {
	c := &child{name: p.name, tail: &tail{line: func(s string) { p.logger.Debug(p.name+" says", "line", s) }},
		done: make(chan struct{}), logger: p.logger}
	c.cmd = p.newCommand(context.Background())
	c.cmd.Stdout, c.cmd.Stderr = c.tail, c.tail
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = c.cmd.Wait()
		if c.serving.Load() {
			c.logger.Error(c.name+" ended by itself", "pid", c.cmd.Process.Pid, "how", fmt.Sprint(c.cmd.ProcessState),
				"said", c.tail.lastLines())
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, p.acct.explainStart(err))
	}
	return c, nil
}

// startError returns the error for a server that ended before it was ready.
func (c *child) startError() error {
	return fmt.Errorf("%s ended while starting (%v): %s", c.name, c.cmd.ProcessState, c.tail.lastLines())
}

// stop sends the first signal. When ctx ends, it sends the second one and finally SIGKILL. It returns when the process
// has ended, with an error if force was needed.
func (c *child) stop(ctx context.Context, ask, insist syscall.Signal) error {
	c.serving.Store(false)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, stopTimeout)
		defer cancel()
	}
	_ = c.cmd.Process.Signal(ask)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	_ = c.cmd.Process.Signal(insist)
	select {
	case <-c.done:
	case <-time.After(forceTimeout):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	return fmt.Errorf("%s did not stop in time and was made to: %w", c.name, ctx.Err())
}

// tail keeps the end of a program's output and passes each line to a function.
type tail struct {
	line func(string)

	mu      sync.Mutex
	kept    []byte
	partial []byte // the last line, as long as it has no end
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.partial = append(t.partial, b...)
	for {
		i := bytes.IndexByte(t.partial, '\n')
		if i < 0 {
			break
		}
		if !isRefusal(t.partial[:i]) {
			t.keepBytes(t.partial[:i+1])
		}
		if t.line != nil {
			t.line(strings.TrimSpace(string(t.partial[:i])))
		}
		t.partial = t.partial[i+1:]
	}
	if len(t.partial) > tailSize {
		t.keepBytes(t.partial)
		t.partial = nil
	}
	return len(b), nil
}

func (t *tail) keepBytes(b []byte) {
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
}

// isRefusal reports whether Postgres wrote the line because it refused a connection while it starts. Each of the many
// tries to connect causes such lines, which would displace the cause of a failed start.
func isRefusal(line []byte) bool {
	return bytes.Contains(line, []byte("FATAL:  the database system is ")) ||
		bytes.Contains(line, []byte("DETAIL:  Consistent recovery state has not been yet reached."))
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept) + string(t.partial)
}

// maxLastLines is how many lines an error text has. A Postgres on a full disk writes 10 for each try to start, of which
// one names the cause.
const maxLastLines = 10

// lastLines returns the last few lines joined into one, for an error text.
func (t *tail) lastLines() string {
	lines := strings.FieldsFunc(t.String(), func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[max(len(lines)-maxLastLines, 0):]
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return cmp.Or(strings.Join(lines, " | "), "it printed nothing")
}

// pollUntil calls try, with pauses of interval, until it returns true or an error, or ctx ends.
func pollUntil(ctx context.Context, interval time.Duration, try func() (bool, error)) error {
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		if err := loop.Pause(ctx, interval); err != nil {
			return err
		}
	}
}

// withTimeout returns ctx with a timeout whose cause names d.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, errors.New("took longer than "+d.String()))
}
