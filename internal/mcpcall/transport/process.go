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

	"github.com/agentherald/herald/internal/base/text"
)

const (
	writeWait  = 10 * time.Second       // minimum time for a command to read its input, whatever the deadlines of calls
	politeWait = 2 * time.Second        // between closing a command's stdin and SIGTERM
	termWait   = time.Second            // between SIGTERM and SIGKILL
	startWait  = 10 * time.Second       // for a supervisor to start its command
	killWait   = 5 * time.Second        // for the kernel to end a killed process
	drainWait  = 500 * time.Millisecond // for reading the output that remains in the pipes of an ended command
	exitWait   = 3 * time.Second        // for a command to end after it closed its output
	tailBytes  = 4 << 10                // of stderr that are kept
)

// Process is a command of the operator together with its process group. mcp-go only uses its stdin and stdout.
type Process struct {
	cmd    *exec.Cmd
	stdin  *stdinWriter
	stdout *lineReader
	stderr *os.File

	// control and status are connected to the supervisor; they are nil without one. The supervisor kills all processes
	// when control is closed, and reports on status how the command ended.
	control, status *os.File

	exited  chan struct{} // closed when the command and its group have ended
	drained chan struct{} // closed when stderr has been read to its end
	state   string        // how the command ended; set before exited is closed

	mu         sync.Mutex
	reaped     bool // the group's id may have been reused
	lastStderr []byte
}

// pipes collects the ends of the pipes between a command and this process.
type pipes struct {
	ours, theirs []*os.File
	err          error
}

// toCommand and fromCommand create a pipe and return both ends. After an error they return nil, and err holds the
// error.
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
		_ = f.Close() // closing nil or a closed file only returns an error
	}
}

// StartProcess starts argv with exactly the environment env. The process is killed if it writes a line longer than
// maxLine. The caller must call Stop. With supervised, on Linux, a supervisor kills all descendants of the command.
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

// Transport returns mcp-go's transport over the pipes. Closing it does not stop the process.
func (p *Process) Transport() mcptransport.Interface {
	return commandTransport{mcptransport.NewIO(p.stdout, p.stdin, nil), p.stdin}
}

// commandTransport adds the requestTracker of stdinWriter to mcp-go's stdio transport.
type commandTransport struct {
	*mcptransport.Stdio
	*stdinWriter
}

// Close closes the transport, which also closes stdin. It resolves the ambiguity between the two embedded types.
func (t commandTransport) Close() error { return t.Stdio.Close() }

// ownProcess starts the command and waits for its end on one OS thread, because Pdeathsig kills the command when the
// thread that started it ends.
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
	// Kill the remaining processes of the group. If possible, do that before reaping the command, because until then
	// the group id cannot have been reused.
	if awaitExit(pid) {
		p.signalGroup(syscall.SIGKILL)
		p.mu.Lock()
		_ = p.cmd.Wait() // returns at once and sets ProcessState
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
	// A process that left the group may keep the pipes open forever.
	_ = p.stdout.pipe.SetReadDeadline(time.Now().Add(drainWait))
	_ = p.stderr.SetReadDeadline(time.Now().Add(drainWait))
	close(p.exited)
}

// awaitCommand waits until the supervisor has started the command. It returns the error if the supervisor could not.
func (p *Process) awaitCommand() error {
	_ = p.cmd.ExtraFiles[1].Close() // otherwise reading status would never reach its end
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

// drainStderr reads stderr to its end, so that the command never blocks on it, and keeps the last tailBytes.
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

// Exited returns a channel that is closed when the command and its group have ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended reports whether the command has ended or is about to be killed because it is unusable.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return p.WriteFailed() || p.OutputTooLong()
	}
}

// WriteFailed reports whether writing to the command failed or timed out.
func (p *Process) WriteFailed() bool { return p.stdin.failed.Load() }

// OutputTooLong reports whether a line of the command's output was longer than allowed.
func (p *Process) OutputTooLong() bool { return p.stdout.tooLong.Load() }

// Received returns the number of bytes that the command has written to stdout.
func (p *Process) Received() int64 { return p.stdout.bytes.Load() }

// signalGroup sends sig to the command and its process group.
func (p *Process) signalGroup(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // an error means that the group has ended
	}
}

// Kill kills the command immediately, with its process group or, under a supervisor, all its descendants.
func (p *Process) Kill() {
	if p.control != nil {
		_ = p.control.Close()
		return
	}
	p.signalGroup(syscall.SIGKILL)
}

// Stop ends the command: it closes stdin, then sends SIGTERM, then SIGKILL. When ctx ends it does not wait between the
// steps. It returns when all processes have ended.
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
	select {
	case <-p.exited:
		return true
	case <-time.After(d):
	case <-ctx.Done():
		select {
		case <-p.exited:
			return true
		default:
		}
	}
	return false
}

// StderrTail returns the last bytes that the command wrote to stderr.
func (p *Process) StderrTail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.lastStderr)
}

// ExitReason describes how the command ended, with the last line of its stderr. mask is applied to the whole tail
// first, because it does not recognise a part of a secret.
func (p *Process) ExitReason(mask func(string) string) string {
	sentence := "the agent's command no longer answers"
	select {
	case <-p.exited:
		sentence = "the agent's command ended (" + p.state + ")"
		<-p.drained // within drainWait
	case <-time.After(exitWait):
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
