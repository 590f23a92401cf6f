// Package tracecontext says which trace a delivery belongs to, in the words of W3C Trace Context: the trace of whoever
// brought the job with a traceparent, else one of its own, whose ids follow from the delivery's id.
//
// What does not live here: spans and where they go (tracing), which part of an attempt is a span (delivery), where the
// traceparent of a job is kept (store).
//
// Invariants: a delivery's trace and its root span have the same ids in every process, so that nothing has to be
// written for a delivery that came without a traceparent; a traceparent is either valid to the letter or is none.
package tracecontext

import (
	"context"
	"encoding/hex"
	"math/rand/v2"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// Header is the name of the HTTP header, and of the member of MCP's _meta.
const Header = "traceparent"

// length is that of every traceparent of version 00: 00-<trace id>-<span id>-<flags>.
const length = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Parse reads a traceparent of version 00. false: it is none, and W3C says to go on as if there were none.
func Parse(value string) (trace.SpanContext, bool) {
	none := trace.SpanContext{}
	if len(value) != length || value[:3] != "00-" || value[35] != '-' || value[52] != '-' {
		return none, false
	}
	id, err := trace.TraceIDFromHex(value[3:35]) // refuses upper case, and the id of zeros
	if err != nil {
		return none, false
	}
	span, err := trace.SpanIDFromHex(value[36:52])
	if err != nil {
		return none, false
	}
	if !isLowerHex(value[53:]) {
		return none, false
	}
	flags, _ := hex.DecodeString(value[53:])
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, Remote: true,
		TraceFlags: trace.TraceFlags(flags[0]) & trace.FlagsSampled}), true // the others mean nothing in version 00
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Format writes a traceparent.
func Format(id trace.TraceID, span trace.SpanID, flags trace.TraceFlags) string {
	b := make([]byte, 0, length)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, id[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	b = append(b, '-')
	return string(hex.AppendEncode(b, []byte{byte(flags & trace.FlagsSampled)}))
}

// NewContext returns ctx with the traceparent that whoever brings a job sent along; what is none is left out.
func NewContext(ctx context.Context, value string) context.Context {
	parent, ok := Parse(value)
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// FromContext is the traceparent of what ctx is part of, empty when it is part of no trace.
func FromContext(ctx context.Context) string {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return ""
	}
	return Format(parent.TraceID(), parent.SpanID(), parent.TraceFlags())
}

// Delivery is the trace of one delivery.
type Delivery struct {
	TraceID trace.TraceID
	Root    trace.SpanID // the span that begins with its acceptance: the parent of its attempts

	parent trace.SpanContext // what came with the job; zero: the trace is the delivery's own
}

// Of is the trace of a delivery whose row keeps this traceparent; empty: none came with its job.
//
// A trace of its own has the delivery's id with its halves exchanged: of a UUID's last 8 bytes the first two bits are
// always the same, and these are the bits by which samplers choose their share of traces.
func Of(id uuid.UUID, traceparent string) Delivery {
	d := Delivery{Root: trace.SpanID(id[8:])}
	var ok bool
	if d.parent, ok = Parse(traceparent); ok {
		d.TraceID = d.parent.TraceID()
		return d
	}
	copy(d.TraceID[:8], id[8:])
	copy(d.TraceID[8:], id[:8])
	return d
}

// Unrecorded is the traceparent that an agent is sent when nobody records spans here. What came with the job is passed
// on as it is; else it names a span that nobody has, and says so by its flags.
func (d Delivery) Unrecorded() string {
	if d.parent.IsValid() {
		return Format(d.TraceID, d.parent.SpanID(), d.parent.TraceFlags())
	}
	return Format(d.TraceID, NewSpanID(), 0)
}

// NewSpanID draws the id of a span.
func NewSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		for i, n := 0, rand.Uint64(); i < len(id); i++ {
			id[i] = byte(n >> (8 * i))
		}
	}
	return id
}

// RootContext is for starting the delivery's root span, and nothing below it.
func (d Delivery) RootContext() context.Context {
	ctx := context.WithValue(context.Background(), idsKey{}, ids{d.TraceID, d.Root})
	if d.parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, d.parent)
	}
	return ctx
}

type idsKey struct{}

type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

// WithSpanID says the id of the span that is started with ctx next, below the span that ctx is part of.
func WithSpanID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, idsKey{}, ids{trace.SpanContextFromContext(ctx).TraceID(), id})
}

// IDs are those of the span that is started with ctx, when they are said; zero: they are to be drawn.
func IDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	said, _ := ctx.Value(idsKey{}).(ids)
	return said.trace, said.span
}
