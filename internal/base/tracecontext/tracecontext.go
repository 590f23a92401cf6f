// Package tracecontext determines the trace of a delivery, according to W3C Trace Context. If the job came with a
// traceparent, the delivery belongs to that trace; otherwise it has its own trace, whose ids are derived from the
// delivery's id.
//
// Other packages create and export spans (tracing), define which parts of an attempt are spans (delivery), and store
// the traceparent of a job (store).
//
// Invariants: the trace id and root span id of a delivery are the same in every process, so that a delivery without a
// traceparent needs no stored ids. A traceparent that is not exactly valid is ignored.
package tracecontext

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// Header is the name of the HTTP header, and of the member of MCP's _meta.
const Header = "traceparent"

// length is the length of a traceparent of version 00: 00-<trace id>-<span id>-<flags>.
const length = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Parse parses a traceparent of version 00. It returns false if value is not valid; W3C requires ignoring it then.
func Parse(value string) (trace.SpanContext, bool) {
	if len(value) != length || value[:3] != "00-" || value[35] != '-' || value[52] != '-' ||
		value != strings.ToLower(value) {
		return trace.SpanContext{}, false
	}
	c := trace.SpanContextConfig{Remote: true}
	flags := [1]byte{}
	_, err1 := hex.Decode(c.TraceID[:], []byte(value[3:35]))
	_, err2 := hex.Decode(c.SpanID[:], []byte(value[36:52]))
	_, err3 := hex.Decode(flags[:], []byte(value[53:]))
	c.TraceFlags = trace.TraceFlags(flags[0]) & trace.FlagsSampled // other flags have no meaning in version 00
	parsed := trace.NewSpanContext(c)
	if errors.Join(err1, err2, err3) != nil || !parsed.IsValid() {
		return trace.SpanContext{}, false
	}
	return parsed, true
}

// Format formats a traceparent of version 00.
func Format(id trace.TraceID, span trace.SpanID, flags trace.TraceFlags) string {
	return fmt.Sprintf("00-%s-%s-%s", id, span, flags&trace.FlagsSampled)
}

// NewContext returns ctx with value, the traceparent of a job's request, as the parent span. It ignores an invalid
// value.
func NewContext(ctx context.Context, value string) context.Context {
	parent, ok := Parse(value)
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// FromContext returns the traceparent of the span in ctx, or "" if there is no span.
func FromContext(ctx context.Context) string {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return ""
	}
	return Format(parent.TraceID(), parent.SpanID(), parent.TraceFlags())
}

// Delivery identifies the trace of one delivery.
type Delivery struct {
	TraceID trace.TraceID
	Root    trace.SpanID // starts with the acceptance of the job; the parent of the attempts

	parent trace.SpanContext // the job's traceparent; zero: the delivery has its own trace
}

// Of returns the trace of the delivery id, given the traceparent in its row; "" if its job came without one.
//
// The delivery's own trace id is the delivery's id with its halves exchanged. Samplers select traces by the last 8
// bytes. In a UUID, the first two of those bits are constant, which would bias the selection.
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

// Unrecorded returns the traceparent for an agent when this process records no spans. It is the job's traceparent, or
// else names a span that does not exist, with the flag "not sampled".
func (d Delivery) Unrecorded() string {
	if d.parent.IsValid() {
		return Format(d.TraceID, d.parent.SpanID(), d.parent.TraceFlags())
	}
	return Format(d.TraceID, NewSpanID(), 0)
}

// NewSpanID returns a random span id.
func NewSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		for i, n := 0, rand.Uint64(); i < len(id); i++ {
			id[i] = byte(n >> (8 * i))
		}
	}
	return id
}

// RootContext returns a context for starting the delivery's root span. Do not use it for other spans.
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

// WithSpanID sets the id of the next span that is started with ctx. Its parent is the span in ctx.
func WithSpanID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, idsKey{}, ids{trace.SpanContextFromContext(ctx).TraceID(), id})
}

// IDs returns the ids set for the next span that is started with ctx; zero ids must be generated.
func IDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	stored, _ := ctx.Value(idsKey{}).(ids)
	return stored.trace, stored.span
}
