package heraldtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Log collects text that several goroutines may write at once: a test's log, or the output of a program.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all text so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how many times text occurs in the log.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Logger returns a logger that writes to l as text, from level on.
func (l *Log) Logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}
