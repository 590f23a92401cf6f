package transport

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// stdinWriter writes to the command's stdin. It records which request each line belongs to, and kills a command that
// does not read.
type stdinWriter struct {
	pipe   *os.File
	broken func() // kills the command
	failed atomic.Bool
	until  time.Time // deadline of the pipe; mcp-go writes one line at a time

	mu      sync.Mutex
	pending map[string]*exchange // by mcp-go's string form of the id
}

// trackRequest makes Write record on x that a part of the request with this id was written.
func (w *stdinWriter) trackRequest(id string, x *exchange) (untrack func()) {
	w.mu.Lock()
	w.pending[id] = x
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		delete(w.pending, id)
		w.mu.Unlock()
	}
}

// Write writes one line to the command, and kills the command if that fails or times out.
func (w *stdinWriter) Write(line []byte) (int, error) {
	// The deadline is not moved for every line, because moving a timer wakes the thread that polls the network.
	if now := time.Now(); w.until.Sub(now) < writeWait {
		w.until = now.Add(2 * writeWait)
		if err := w.pipe.SetWriteDeadline(w.until); err != nil && !errors.Is(err, os.ErrClosed) {
			return 0, err
		}
	}
	n, err := w.pipe.Write(line)
	if n > 0 {
		w.recordWritten(line)
	} else if errors.Is(err, os.ErrClosed) {
		// Stop closed the pipe, and the command is ending. Reporting success keeps mcp-go from logging that its answer
		// to the command was not sent.
		return len(line), nil
	}
	if err != nil {
		w.failed.Store(true)
		w.broken() // half a line may be in the pipe
	}
	return n, err
}

// recordWritten records that a part of the request in line was written.
func (w *stdinWriter) recordWritten(line []byte) {
	id, ok := foreignRequestID(line)
	if !ok {
		return
	}
	w.mu.Lock()
	x := w.pending[id]
	w.mu.Unlock()
	x.recordWritten()
}

// Close closes the pipe. mcp-go and Process.Stop both call it; the second call has no effect.
func (w *stdinWriter) Close() error {
	_ = w.pipe.Close()
	return nil
}

// lineReader reads the command's stdout. A line longer than limit ends the stream and kills the command.
type lineReader struct {
	pipe    *os.File
	limit   int64
	broken  func()
	tooLong atomic.Bool
	bytes   atomic.Int64 // bytes read

	line int64 // bytes since the last line feed
}

// Read returns io.EOF for every error, because mcp-go logs other errors. Process reports the cause.
func (r *lineReader) Read(p []byte) (int, error) {
	if r.tooLong.Load() {
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
		r.tooLong.Store(true)
		r.broken()
		return 0, io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = io.EOF
	}
	return n, err
}
