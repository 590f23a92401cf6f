// Package logging creates the slog logger of all commands. It defines the format, level, time and units of the log, and
// the lines that a worker logs while Postgres or Redis is unavailable.
//
// Invariants:
//
//   - Durations have a unit ("1.5s") in both formats.
//   - An outage of a service causes one line when it begins and one when it ends (Outage). The callers mark lines that
//     an outage explains with About, and Handler lowers these to debug.
package logging

import (
	"io"
	"log/slog"
	"strings"
	"time"
)

// New returns a logger that writes to w. format is "json" or text; level is debug, info (the default), warn or error.
func New(w io.Writer, level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: writeUnits}
	var l slog.Level
	if l.UnmarshalText([]byte(strings.ToUpper(level))) == nil {
		o.Level = l
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// writeUnits formats durations with a unit, because slog's JSON contains plain nanoseconds.
func writeUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(roundDuration(a.Value.Duration()).String())
	}
	return a
}

// roundDuration drops digits that have no practical meaning.
func roundDuration(d time.Duration) time.Duration {
	switch size := d.Abs(); {
	case size >= time.Second:
		return d.Round(time.Millisecond)
	case size >= time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d
}
