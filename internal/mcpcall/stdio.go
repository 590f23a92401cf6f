package mcpcall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/text"
)

const (
	writeWait  = 10 * time.Second       // for a command to take what is written to it, at least, whatever the calls' deadlines
	politeWait = 2 * time.Second        // between closing a command's stdin and SIGTERM
	termWait   = time.Second            // between SIGTERM and SIGKILL
	startWait  = 10 * time.Second       // for a supervisor to start its command
	killWait   = 5 * time.Second        // for the kernel to bury it
	drainWait  = 500 * time.Millisecond // for output that a command left in its pipes
	tailBytes  = 4 << 10                // of stderr that is remembered
)

// process is a command of the operator, its own process group with it. mcp-go sees two pipes.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  *stdinWriter
	reader *lineReader
	stdout io.Reader // reader, as mcp-go takes it

	outPipe, errPipe *os.File
	control, status  *os.File      // the supervisor's: it kills all when control is closed, and tells in status what happened; nil: none
	exited           chan struct{} // closed when the command and its group are gone
	drained          chan struct{} // closed when stderr has ended
	state            string        // how it ended, set before exited is closed

	mu   sync.Mutex
	gone bool // reaped: the group's number may be another's by now
	tail []byte
}

// startError: the command did not even start.
type startError struct{ err error }

func (e *startError) Error() string {
	return "the agent's command does not start: " + withoutPath(e.err)
}
func (e *startError) Unwrap() error { return e.err }

// withoutPath words an error without the path of the command or of its folder, which may have been filled in with a secret.
func withoutPath(err error) string {
	var path *fs.PathError
	var lookup *exec.Error
	switch {
	case errors.As(err, &path) && path.Op == "chdir":
		return "its working directory: " + path.Err.Error()
	case errors.As(err, &path):
		return path.Err.Error()
	case errors.As(err, &lookup):
		return lookup.Err.Error()
	}
	return err.Error()
}

// startProcess starts argv with exactly env. The caller owns the process until stop has returned.
func startProcess(argv, env []string, dir string, maxLine int64, supervised bool) (*process, error) {
	var pipes []*os.File
	closeAll := func() {
		for _, f := range pipes {
			_ = f.Close()
		}
	}
	count := 3
	if supervised {
		count = 5
	}
	for range count {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, &startError{err}
		}
		pipes = append(pipes, r, w)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0], pipes[3], pipes[5]
	cmd.SysProcAttr = processAttributes()

	p := &process{name: argv[0], cmd: cmd, outPipe: pipes[2], errPipe: pipes[4], exited: make(chan struct{}), drained: make(chan struct{})}
	if supervised {
		p.control, p.status = pipes[7], pipes[8]
		superviseCommand(cmd, pipes[6], pipes[9])
	}
	p.stdin = &stdinWriter{pipe: pipes[1], pending: map[string]*exchange{}, broken: p.kill}
	p.reader = &lineReader{pipe: pipes[2], limit: maxLine, broken: p.kill}
	p.stdout = p.reader

	started := make(chan error)
	go p.own(started)
	if err := <-started; err != nil {
		closeAll()
		return nil, &startError{err}
	}
	childs := []*os.File{pipes[0], pipes[3], pipes[5]}
	if supervised {
		childs = append(childs, pipes[6])
	}
	for _, f := range childs {
		_ = f.Close()
	}
	go p.drain()
	return p, nil
}

// own starts the command and stays with it on one thread: the kernel's "kill it when its parent dies" means the thread.
func (p *process) own(started chan<- error) {
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
	// What it left behind in its group is ended with it: before it is reaped if possible, because then the group's number is still
	// its own for certain.
	if awaitExit(pid) {
		p.signal(syscall.SIGKILL)
		p.mu.Lock()
		_ = p.cmd.Wait() // at once; how it ended is in ProcessState
		p.gone = true
		p.mu.Unlock()
	} else {
		_ = p.cmd.Wait()
		p.mu.Lock()
		p.gone = true
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
	_ = p.outPipe.SetReadDeadline(time.Now().Add(drainWait))
	_ = p.errPipe.SetReadDeadline(time.Now().Add(drainWait))
	close(p.exited)
}

// awaitCommand waits until the supervisor has started the command, and returns why it could not.
func (p *process) awaitCommand() error {
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

// drain reads stderr to its end, so that the command never blocks on it, and remembers the last of it.
func (p *process) drain() {
	defer close(p.drained)
	buf := make([]byte, 4096)
	for {
		n, err := p.errPipe.Read(buf)
		p.mu.Lock()
		p.tail = append(p.tail, buf[:n]...)
		if over := len(p.tail) - tailBytes; over > 0 {
			p.tail = append(p.tail[:0], p.tail[over:]...)
		}
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return p.stdin.failed() || p.reader.tooLong()
	}
}

// signal goes to the whole group.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // it may have ended by itself
	}
}

// kill ends the command and all that it started.
func (p *process) kill() {
	if p.control != nil {
		_ = p.control.Close()
		return
	}
	p.signal(syscall.SIGKILL)
}

// stop ends the command: its stdin ends, then SIGTERM, then SIGKILL; at once when ctx ends. It returns when nothing is left.
func (p *process) stop(ctx context.Context) {
	p.stdin.close()
	if p.reader.tooLong() || !p.exitsWithin(ctx, politeWait) {
		p.signal(syscall.SIGTERM)
		if !p.exitsWithin(ctx, termWait) {
			p.kill()
			if !p.exitsWithin(context.Background(), killWait) {
				p.signal(syscall.SIGKILL)
			}
		}
	}
	<-p.drained
	_ = p.outPipe.Close()
	_ = p.errPipe.Close()
}

func (p *process) exitsWithin(ctx context.Context, d time.Duration) bool {
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

func (p *process) stderrTail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.tail)
}

// obituary says how the command ended, with its last line, which masked is given whole: half a secret is not found.
func (p *process) obituary(masked func(string) string) string {
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
	last := strings.TrimSpace(masked(p.stderrTail()))
	if i := strings.LastIndexByte(last, '\n'); i >= 0 {
		last = last[i+1:]
	}
	if last != "" {
		sentence += ": " + text.Excerpt(last, 200)
	}
	return sentence
}

// stdinWriter is the command's stdin. It notes which request a line belongs to, and gives up on a command that does not read.
type stdinWriter struct {
	pipe   *os.File
	broken func() // ends the command
	bad    atomic.Bool
	until  time.Time // the pipe's deadline; mcp-go writes one line at a time

	mu      sync.Mutex
	pending map[string]*exchange // by mcp-go's spelling of the id
}

// track makes Write note what is written of the request with this id.
func (w *stdinWriter) track(id string, x *exchange) (untrack func()) {
	w.mu.Lock()
	w.pending[id] = x
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		delete(w.pending, id)
		w.mu.Unlock()
	}
}

// requestPrefix is how mcp-go's messages with an id begin; a number follows.
var requestPrefix = []byte(`{"jsonrpc":"2.0","id":`)

func (w *stdinWriter) Write(line []byte) (int, error) {
	// Not for every line: a timer that moves wakes the thread that waits for the network.
	if now := time.Now(); w.until.Sub(now) < writeWait {
		w.until = now.Add(2 * writeWait)
		if err := w.pipe.SetWriteDeadline(w.until); err != nil && !errors.Is(err, os.ErrClosed) {
			return 0, err
		}
	}
	n, err := w.pipe.Write(line)
	if n > 0 {
		w.note(line)
	} else if errors.Is(err, os.ErrClosed) {
		// The command is leaving in peace. What it still asked gets no answer, and mcp-go need not log that.
		return len(line), nil
	}
	if err != nil {
		w.bad.Store(true)
		w.broken() // half a line may be in the pipe
	}
	return n, err
}

func (w *stdinWriter) note(line []byte) {
	rest, ok := bytes.CutPrefix(line, requestPrefix)
	if !ok {
		return
	}
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		return
	}
	id, err := strconv.ParseInt(string(rest[:end]), 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	x := w.pending[fmt.Sprintf("int64:%d", id)]
	w.mu.Unlock()
	if x != nil {
		x.markWritten()
	}
}

func (w *stdinWriter) failed() bool { return w.bad.Load() }

// Close is called by mcp-go and by stop; the second finds it closed.
func (w *stdinWriter) Close() error {
	w.close()
	return nil
}

func (w *stdinWriter) close() { _ = w.pipe.Close() }

// lineReader is the command's stdout. A line longer than limit ends the stream and the command.
type lineReader struct {
	pipe   *os.File
	limit  int64
	broken func()
	long   atomic.Bool
	bytes  atomic.Int64 // that came

	line int64 // bytes since the last line feed
}

// Read ends with io.EOF whatever happened: mcp-go logs other errors, and the cause is known here.
func (r *lineReader) Read(p []byte) (int, error) {
	if r.long.Load() {
		return 0, io.EOF
	}
	n, err := r.pipe.Read(p)
	r.bytes.Add(int64(n))
	if i := bytes.LastIndexByte(p[:n], '\n'); i >= 0 {
		r.line = int64(n - i - 1)
	} else {
		r.line += int64(n)
	}
	if r.line > r.limit {
		r.long.Store(true)
		r.broken()
		return 0, io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = io.EOF
	}
	return n, err
}

func (r *lineReader) tooLong() bool { return r.long.Load() }
