package logging

import (
	"context"
	"log/slog"
)

// aboutKey names the service in a marked line.
const aboutKey = "about"

// maxReport bounds what an Outage remembers of a line, in bytes.
const maxReport = 500

// About marks a line that the service's being away would explain: a failure of it at level warn and above, a mere sign
// of it (it is slow) at info. Under Handler such a line is a debug line.
func About(s Service) slog.Attr { return slog.Any(aboutKey, s) }

// Handler gives next all lines, but lowers to debug those that are about the service of one of the outages, and lets
// that one know.
func Handler(next slog.Handler, outages ...*Outage) slog.Handler {
	h := handler{next: next, outages: map[Service]*Outage{}}
	for _, o := range outages {
		h.outages[o.Service] = o
	}
	return h
}

type handler struct {
	next    slog.Handler
	outages map[Service]*Outage
	about   *Outage // of all that this logger writes; nil: it depends on the line
}

// Enabled implements slog.Handler.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	o, text := h.about, r.Message
	var cause slog.Value
	r.Attrs(func(a slog.Attr) bool {
		if found := h.outageOf(a); found != nil {
			o = found
		} else if a.Key == "error" {
			cause = a.Value
		}
		return true
	})
	if o == nil {
		return h.next.Handle(ctx, r)
	}
	if r.Level >= slog.LevelInfo {
		if cause.Kind() != slog.KindAny || cause.Any() != nil {
			text += ": " + cause.String()
		}
		o.reportLine(r.Time, text[:min(len(text), maxReport)], r.Level >= slog.LevelWarn)
		r.Level = slog.LevelDebug
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// outageOf is the outage that an attribute names; nil: none.
func (h handler) outageOf(a slog.Attr) *Outage {
	if a.Key != aboutKey || a.Value.Kind() != slog.KindAny {
		return nil
	}
	s, _ := a.Value.Any().(Service)
	return h.outages[s]
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if o := h.outageOf(a); o != nil {
			h.about = o
		}
	}
	h.next = h.next.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}

var _ slog.Handler = handler{}
