package transport

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"

	"github.com/agentherald/herald/internal/text"
)

const (
	writeWait  = 10 * time.Second       // for a command to take what is written to it, at least, whatever the calls' deadlines
	politeWait = 2 * time.Second        // between closing a command's stdin and SIGTERM
	termWait   = time.Second            // between SIGTERM and SIGKILL
	startWait  = 10 * time.Second       // for a supervisor to start its command
	killWait   = 5 * time.Second        // for the kernel to end it
	drainWait  = 500 * time.Millisecond // for output that a command left in its pipes
	tailBytes  = 4 << 10                // of stderr that is remembered
)

// Process is a command of the operator, its own process group with it. mcp-go sees two pipes.
type Process struct {
	cmd    *exec.Cmd
	stdin  *stdinWriter
	stdout *lineReader
	stderr *os.File

	// The supervisor's, nil when there is none: it kills all when control is closed, and writes to status how the
	// command ended.
	control, status *os.File

	exited  chan struct{} // closed when the command and its group are gone
	drained chan struct{} // closed when stderr has ended
	state   string        // how it ended, set before exited is closed

	mu         sync.Mutex
	reaped     bool // the group's number may be another's by now
	lastStderr []byte
}

// pipes are what a command and this process speak over.
type pipes struct {
	ours, theirs []*os.File
	err          error
}

// toCommand and fromCommand make a pipe and return both ends, nil after an error.
func (p *pipes) toCommand() (ours, theirs *os.File) {
	theirs, ours = p.openPipe()
	p.ours, p.theirs = append(p.ours, ours), append(p.theirs, theirs)
	return ours, theirs
}

func (p *pipes) fromCommand() (ours, theirs *os.File) {
	ours, theirs = p.openPipe()
	p.ours, p.theirs = append(p.ours, ours), append(p.theirs, theirs)
	return ours, theirs
}

func (p *pipes) openPipe() (r, w *os.File) {
	if p.err == nil {
		r, w, p.err = os.Pipe()
	}
	return r, w
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nil and closed ones are fine
	}
}

// StartProcess starts argv with exactly env. A line of its output longer than maxLine ends it. The caller owns the
// process until Stop has returned. With supervised, and on Linux, a supervisor ends whatever the command started.
func StartProcess(argv, env []string, dir string, maxLine int64, supervised bool) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = env, dir, processAttributes()
	p := &Process{cmd: cmd, exited: make(chan struct{}), drained: make(chan struct{})}
	var ends pipes
	stdin, childStdin := ends.toCommand()
	stdout, childStdout := ends.fromCommand()
	stderr, childStderr := ends.fromCommand()
	var childControl, childStatus *os.File
	if supervised && canSupervise {
		p.control, childControl = ends.toCommand()
		p.status, childStatus = ends.fromCommand()
	}
	if ends.err != nil {
		closeFiles(append(ends.ours, ends.theirs...))
		return nil, &StartError{ends.err}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childStdin, childStdout, childStderr
	if p.control != nil {
		superviseCommand(cmd, childControl, childStatus)
	}
	p.stdin = &stdinWriter{pipe: stdin, pending: map[string]*exchange{}, broken: p.Kill}
	p.stdout = &lineReader{pipe: stdout, limit: maxLine, broken: p.Kill}
	p.stderr = stderr

	started := make(chan error)
	go p.ownProcess(started)
	err := <-started
	closeFiles(ends.theirs)
	if err != nil {
		closeFiles(ends.ours)
		return nil, &StartError{err}
	}
	go p.drainStderr()
	return p, nil
}

// Transport is what mcp-go speaks over. It does not own the process.
func (p *Process) Transport() mcptransport.Interface {
	return commandTransport{mcptransport.NewIO(p.stdout, p.stdin, nil), p.stdin}
}

// commandTransport makes mcp-go's transport over pipes a requestTracker.
type commandTransport struct {
	*mcptransport.Stdio
	*stdinWriter
}

// Close, which both have, is the transport's: it closes stdin too.
func (t commandTransport) Close() error { return t.Stdio.Close() }

// ownProcess starts the command and stays with it on one thread: the kernel's "kill it when its parent dies" means the
// thread.
func (p *Process) ownProcess(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	if err == nil && p.status != nil {
		if err = p.awaitCommand(); err != nil {
			_ = p.control.Close()
			_ = p.cmd.Wait()
		}
	}
	if started <- err; err != nil {
		return
	}
	pid := p.cmd.Process.Pid
	// What it left behind in its group is ended with it: before it is reaped if possible, because then the group's
	// number is still its own for certain.
	if awaitExit(pid) {
		p.signalGroup(syscall.SIGKILL)
		p.mu.Lock()
		_ = p.cmd.Wait() // at once; how it ended is in ProcessState
		p.reaped = true
		p.mu.Unlock()
	} else {
		_ = p.cmd.Wait()
		p.mu.Lock()
		p.reaped = true
		p.mu.Unlock()
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	p.state = p.cmd.ProcessState.String()
	if p.status != nil {
		_ = p.status.SetReadDeadline(time.Now().Add(drainWait))
		if state, err := io.ReadAll(p.status); err == nil && len(state) > 0 {
			p.state = string(state)
		}
		_ = p.status.Close()
		_ = p.control.Close()
	}
	// A process that left the group may hold the pipes open for ever.
	_ = p.stdout.pipe.SetReadDeadline(time.Now().Add(drainWait))
	_ = p.stderr.SetReadDeadline(time.Now().Add(drainWait))
	close(p.exited)
}

// awaitCommand waits until the supervisor has started the command, and returns why it could not.
func (p *Process) awaitCommand() error {
	_ = p.cmd.ExtraFiles[1].Close() // or its end would never be read
	_ = p.status.SetReadDeadline(time.Now().Add(startWait))
	var errno int
	if _, err := fmt.Fscanln(p.status, &errno); err != nil {
		return fmt.Errorf("its supervisor does not start: %w", err)
	}
	if errno != 0 {
		return syscall.Errno(errno)
	}
	return nil
}

// drainStderr reads stderr to its end, so that the command never blocks on it, and remembers the last of it.
func (p *Process) drainStderr() {
	defer close(p.drained)
	buf := make([]byte, 4096)
	for {
		n, err := p.stderr.Read(buf)
		p.mu.Lock()
		p.lastStderr = append(p.lastStderr, buf[:n]...)
		if over := len(p.lastStderr) - tailBytes; over > 0 {
			p.lastStderr = append(p.lastStderr[:0], p.lastStderr[over:]...)
		}
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Exited is closed when the command and its group are gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended: the command is gone, or about to be ended because it is of no use any more.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return p.WriteFailed() || p.OutputTooLong()
	}
}

// WriteFailed: the command did not take what was written to it.
func (p *Process) WriteFailed() bool { return p.stdin.failed.Load() }

// OutputTooLong: a line of the command's output was longer than allowed.
func (p *Process) OutputTooLong() bool { return p.stdout.tooLong.Load() }

// Heard grows with what the command says.
func (p *Process) Heard() int64 { return p.stdout.bytes.Load() }

// signalGroup signals the command and all of its group.
func (p *Process) signalGroup(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // it may have ended by itself
	}
}

// Kill ends the command and all that it started, at once.
func (p *Process) Kill() {
	if p.control != nil {
		_ = p.control.Close()
		return
	}
	p.signalGroup(syscall.SIGKILL)
}

// Stop ends the command: its stdin ends, then SIGTERM, then SIGKILL; at once when ctx ends. It returns when nothing is
// left.
func (p *Process) Stop(ctx context.Context) {
	_ = p.stdin.Close()
	if p.OutputTooLong() || !p.exitsWithin(ctx, politeWait) {
		p.signalGroup(syscall.SIGTERM)
		if !p.exitsWithin(ctx, termWait) {
			p.Kill()
			if !p.exitsWithin(context.Background(), killWait) {
				p.signalGroup(syscall.SIGKILL)
			}
		}
	}
	<-p.drained
	_ = p.stdout.pipe.Close()
	_ = p.stderr.Close()
}

func (p *Process) exitsWithin(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.exited:
		return true
	case <-t.C:
	case <-ctx.Done():
		select {
		case <-p.exited:
			return true
		default:
		}
	}
	return false
}

// StderrTail is the last of what the command wrote to stderr.
func (p *Process) StderrTail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.lastStderr)
}

// ExitReason says how the command ended, with the last line of its stderr, of which mask is given the whole: half a
// secret is not found.
func (p *Process) ExitReason(mask func(string) string) string {
	sentence := "the agent's command no longer answers"
	t := time.NewTimer(drainWait) // its exit is noticed a moment after its pipes
	defer t.Stop()
	select {
	case <-p.exited:
		sentence = "the agent's command ended (" + p.state + ")"
		select {
		case <-p.drained:
		case <-t.C:
		}
	case <-t.C:
	}
	last := strings.TrimSpace(mask(p.StderrTail()))
	if i := strings.LastIndexByte(last, '\n'); i >= 0 {
		last = last[i+1:]
	}
	if last != "" {
		sentence += ": " + text.Excerpt(last, 200)
	}
	return sentence
}
