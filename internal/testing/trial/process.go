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

	"github.com/prometheus/procfs"
)

// Process is a running program. Its output goes to a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// Program is a program that a trial runs: Herald's own, or a third-party program next to it.
type Program struct {
	Name, Path string
	Args       []string
	Env        []string // the whole environment
	In         io.Reader
	Log        string    // the file for its output
	out        io.Writer // for its standard output; nil: the log
	own        bool      // Herald's own: it ends what it started, and the trial does not do that for it
}

// Start runs the program in its own process group. So Ctrl-C in a terminal reaches only the trial, which stops the
// program with End. If a third-party program ends by itself, processes that it left in its group are killed.
func (p Program) Start() (*Process, error) {
	f, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	c := exec.Command(p.Path, p.Args...)
	c.Env, c.Stdin, c.Stdout, c.Stderr = p.Env, p.In, f, f
	if p.out != nil {
		c.Stdout = p.out
	}
	c.SysProcAttr = attributes()
	c.WaitDelay = 2 * time.Second
	proc := &Process{name: p.Name, log: p.Log, cmd: c, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the parent-death signal to the thread, so the thread must live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			proc.err = c.Wait()
			if !p.own {
				// No other group can have its number yet: the kernel gives out all others first.
				_ = syscall.Kill(-proc.PID(), syscall.SIGKILL) // it fails only if no process is left
			}
			close(proc.done)
		}
		_ = f.Close()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return proc, nil
}

// Name returns the process's name in the trial.
func (p *Process) Name() string { return p.name }

// Log returns the path of the file with the output.
func (p *Process) Log() string { return p.log }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Status returns what Linux says about the process, such as the memory that it uses.
func (p *Process) Status() (procfs.ProcStatus, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return proc.NewStatus()
}

// children returns the processes whose parent is pid.
func children(pid int) (found []int, err error) {
	all, err := procfs.AllProcs()
	for _, p := range all {
		if s, err := p.Stat(); err == nil && s.PPID == pid { // otherwise it has just ended
			found = append(found, p.PID)
		}
	}
	return found, err
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Freeze stops the process (SIGSTOP). Thaw continues it.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw continues the process (SIGCONT).
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Kill kills the process (SIGKILL) and waits until it ended.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// End kills the process and all processes in its process group, and waits until it ended.
func (p *Process) End() error {
	select {
	case <-p.done:
		return nil // its group has ended as well, and another group may have the number now
	default:
	}
	if err := syscall.Kill(-p.PID(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s and what it started: %w", p.name, err)
	}
	<-p.done
	return nil
}

// Terminate sends SIGTERM and waits. An exit code other than 0 is an error. If ctx ends first, the process is killed.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Wait waits for the end of the process, as Terminate does, but sends no signal.
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
