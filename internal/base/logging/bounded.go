package logging

import (
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readerWait = time.Second // the longest wait of a line for a reader that stopped reading
	// writtenAtOnce is how many bytes a pipe, a socket or a file accepts without a wait when poll reports it as ready.
	writtenAtOnce = 4096
)

// NewBounded is New for a file, pipe, socket or terminal. If nothing reads it, the first line waits for readerWait, and
// this and the next lines are dropped. Otherwise the log would stop all that writes to it, such as deliveries. When the
// file is read again, one line says how many lines are missing.
func NewBounded(f *os.File, level, format string) *slog.Logger {
	return New(&boundedWriter{file: f, direct: New(f, level, format)}, level, format)
}

// boundedWriter implements NewBounded. The lock of slog's handler guards it.
type boundedWriter struct {
	file    *os.File
	direct  *slog.Logger // writes without a bound
	dropped int          // lines since the file was ready
	isCut   bool         // the first of them was written in part
}

// Write writes or drops one line. It ignores errors, as slog does.
func (w *boundedWriter) Write(line []byte) (int, error) {
	for rest := line; len(rest) > 0; {
		if !w.isReady() {
			w.isCut = w.isCut || len(rest) < len(line)
			w.dropped++
			break
		}
		if w.isCut {
			_, _ = w.file.WriteString("\n") // otherwise the next line is a part of the cut one, and no JSON
			w.isCut = false
			continue
		}
		if w.dropped > 0 {
			w.direct.Warn("lines of this log are missing, because nothing read it", "lines", w.dropped)
			w.dropped = 0
			continue
		}
		part := rest[:min(len(rest), writtenAtOnce)]
		_, _ = w.file.Write(part)
		rest = rest[len(part):]
	}
	return len(line), nil
}

// isReady reports whether the file accepts writtenAtOnce bytes. Unless lines were dropped, it waits for readerWait.
func (w *boundedWriter) isReady() bool {
	wait := readerWait
	if w.dropped > 0 {
		wait = 0
	}
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.file.Fd()), Events: unix.POLLOUT}},
			max(int(time.Until(end).Milliseconds()), 0))
		if err != unix.EINTR {
			return n != 0 // an error is left to the write
		}
	}
}
