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

// stdinWriter is the command's stdin. It notes which request a line belongs to, and gives up on a command that does not
// read.
type stdinWriter struct {
	pipe   *os.File
	broken func() // ends the command
	failed atomic.Bool
	until  time.Time // the pipe's deadline; mcp-go writes one line at a time

	mu      sync.Mutex
	pending map[string]*exchange // by mcp-go's spelling of the id
}

// trackRequest makes Write record what is written of the request with this id.
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
		w.recordWritten(line)
	} else if errors.Is(err, os.ErrClosed) {
		// We closed it, and the command is ending. What it still asks gets no answer, and mcp-go need not log that.
		return len(line), nil
	}
	if err != nil {
		w.failed.Store(true)
		w.broken() // half a line may be in the pipe
	}
	return n, err
}

// recordWritten records that some of the request in line was written.
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

// Close is called by mcp-go and by Process.Stop; the second finds it closed.
func (w *stdinWriter) Close() error {
	_ = w.pipe.Close()
	return nil
}

// lineReader is the command's stdout. A line longer than limit ends the stream and the command.
type lineReader struct {
	pipe    *os.File
	limit   int64
	broken  func()
	tooLong atomic.Bool
	bytes   atomic.Int64 // that came

	line int64 // bytes since the last line feed
}

// Read ends with io.EOF whatever happened: mcp-go logs other errors, and the cause is known here.
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
