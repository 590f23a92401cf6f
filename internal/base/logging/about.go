package logging

import (
	"context"
	"log/slog"
)

// aboutKey is the attribute with the service in a marked line.
const aboutKey = "about"

// maxReport bounds the text of a line that an Outage keeps, in bytes.
const maxReport = 500

// About marks a log line that an outage of the service would explain: a failure at level warn or above, or a symptom
// such as slowness at level info. Handler lowers such a line to debug.
func About(s Service) slog.Attr { return slog.Any(aboutKey, s) }

// Handler passes all lines to next. Lines about the service of one of the outages are lowered to debug and reported to
// that Outage.
func Handler(next slog.Handler, outages ...*Outage) slog.Handler {
	h := handler{next: next, outages: map[Service]*Outage{}}
	for _, o := range outages {
		h.outages[o.Service] = o
	}
	return h
}

// handler implements Handler.
type handler struct {
	next    slog.Handler
	outages map[Service]*Outage
	about   *Outage // for all lines of this logger; nil: the line determines it
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

// outageOf returns the outage that an attribute names, or nil.
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
