// Package logging makes the slog logger that every command uses: one place for format, level and time.
package logging

import (
	"io"
	"log/slog"
	"strings"
)

// New writes to w: format "json" or text, level debug, info (default), warn or error.
func New(w io.Writer, level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	var l slog.Level
	if l.UnmarshalText([]byte(strings.ToUpper(level))) == nil {
		o.Level = l
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
