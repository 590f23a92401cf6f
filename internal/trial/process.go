package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program that runs by itself, its output in a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
}

// program says what to run.
type program struct {
	name, path string
	args, env  []string
	stdin      io.Reader
	stdout     io.Writer           // nil: the log too
	log        string              // file
	group      bool                // what it started and left in its process group ends with it
	as         *syscall.Credential // nil: this process's user
}

// start runs the program in a process group of its own: a terminal's Ctrl-C is for the trial, which ends what it started.
func (p program) start() (*Process, error) {
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	c := exec.Command(p.path, p.args...)
	c.Env, c.Stdin, c.Stdout, c.Stderr = p.env, p.stdin, f, f
	if p.stdout != nil {
		c.Stdout = p.stdout
	}
	c.SysProcAttr = attributes()
	if c.SysProcAttr.Credential = p.as; p.as != nil {
		c.Dir = "/" // ours may be one that the user cannot enter
	}
	c.WaitDelay = 2 * time.Second
	proc := &Process{name: p.name, log: p.log, cmd: c, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the parent-death signal to the thread, so the thread must live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			if p.group && awaitExit(proc.PID()) {
				// Not reaped yet, it keeps the group's number from becoming another's.
				_ = syscall.Kill(-proc.PID(), syscall.SIGKILL) // it fails only if nothing is left
			}
			proc.err = c.Wait()
			close(proc.done)
		}
		_ = f.Close()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return proc, nil
}

// Name is what the trial calls it.
func (p *Process) Name() string { return p.name }

// Log is the file with what it said.
func (p *Process) Log() string { return p.log }

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Freeze stops it in its tracks (SIGSTOP); Thaw lets it go on (SIGCONT).
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Kill is kill -9; it returns when the process is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Terminate asks it to end (SIGTERM) and waits. An exit code other than 0 is an error; when ctx ends first it is killed.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Wait waits for its end as Terminate does, without asking for it.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not end in time: %w", p.name, context.Cause(ctx)), p.Kill())
	}
	if p.err != nil {
		return fmt.Errorf("%s ended: %w (%s)", p.name, p.err, p.log)
	}
	return nil
}
