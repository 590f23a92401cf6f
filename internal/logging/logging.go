// Package logging makes the slog logger that every command uses: one place for format, level, time and units, and for
// what a worker's log says while Postgres or Redis is away.
//
// Invariants:
//   - A duration is written with its unit ("1.5s"), in both formats.
//   - An outage of a service is one line when it begins and one when it ends (Outage). Lines that it explains are marked
//     with About by whoever writes them, and become debug lines.
package logging

import (
	"io"
	"log/slog"
	"strings"
	"time"
)

// New writes to w: format "json" or text, level debug, info (default), warn or error.
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

// writeUnits writes durations as people do: slog's JSON has bare nanoseconds.
func writeUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(roundDuration(a.Value.Duration()).String())
	}
	return a
}

// roundDuration keeps the digits that somebody reads.
func roundDuration(d time.Duration) time.Duration {
	switch size := d.Abs(); {
	case size >= time.Second:
		return d.Round(time.Millisecond)
	case size >= time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d
}
