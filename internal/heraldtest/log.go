package heraldtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Log keeps what is written to it, by several goroutines at once: a test's log, or the output of a program.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write makes a Log an io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count says how often a text was written.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Logger returns a logger that writes here as text, from level on.
func (l *Log) Logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}
