package delivery

import (
	"context"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/store"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// attemptSpans are an attempt's OpenTelemetry spans, in the trace of its delivery: one for the attempt, whose parent is
// the delivery's root span, and one for each step that has ended. Nil: there is no tracing.
//
// The spans contain few texts of agents and clients: the key, the tool's name and the endpoint's host. A failed span
// contains only the reason. Requests and answers are in Postgres, in the row with the id herald.delivery.id.
type attemptSpans struct {
	tracer trace.Tracer
	span   trace.Span
	call   trace.SpanID // id of the span of the step call; the agent receives this id before the span exists
}

// maxSpanText bounds each text of agents and clients in a span, in bytes.
const maxSpanText = 300

// beginSpans starts the span of the attempt a. It returns nil if there is no tracer.
//
// The root span of the delivery lasts from its acceptance to its first claim, and has the same ids in every process.
// Each attempt starts the root span again, so that the sampler makes the same decision for the whole trace. Only the
// first attempt ends the root span, which exports it.
func (e *Executor) beginSpans(a *attempt) *attemptSpans {
	if e.Tracer == nil {
		return nil
	}
	c := a.claim
	about := trace.WithAttributes(
		attribute.String("herald.delivery.id", c.ID.String()),
		attribute.String("herald.delivery.key", text.Excerpt(c.Key, maxSpanText)),
		attribute.String("herald.kind", text.Excerpt(string(c.Job.Kind), maxSpanText)),
		attribute.String("herald.agent", c.Agent().String()))
	_, root := e.Tracer.Start(tracecontext.Of(c.ID, c.Traceparent).RootContext(), "accept", about,
		trace.WithTimestamp(c.CreatedAt), trace.WithSpanKind(trace.SpanKindProducer))
	if !c.Again {
		root.End(trace.WithTimestamp(c.StartedAt))
	}

	s := &attemptSpans{tracer: e.Tracer, call: tracecontext.NewSpanID()}
	_, s.span = e.Tracer.Start(trace.ContextWithSpan(context.Background(), root), "attempt", about,
		trace.WithTimestamp(a.began), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.Int("herald.attempt", c.Attempt)))
	return s
}

// addStep adds the span of the step called name, which has ended. err is the step's error, or nil.
func (s *attemptSpans) addStep(a *attempt, name string, err error, began, ended time.Time) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	ctx := trace.ContextWithSpan(context.Background(), s.span)
	options := []trace.SpanStartOption{trace.WithTimestamp(began)}
	if name == "call" {
		ctx = tracecontext.WithSpanID(ctx, s.call)
		options = append(options, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(a.callAttributes()...))
	}
	_, span := s.tracer.Start(ctx, name, options...)
	if err != nil {
		span.SetStatus(codes.Error, string(classify.Error(err).Reason))
	}
	span.End(trace.WithTimestamp(ended))
}

// callAttributes returns span attributes for the name of the called tool and the host of the endpoint.
func (a *attempt) callAttributes() []attribute.KeyValue {
	about := []attribute.KeyValue{attribute.String("mcp.tool.name", text.Excerpt(a.call.tool, maxSpanText))}
	if u, err := url.Parse(a.endpoint.URL); err == nil && u.Hostname() != "" {
		about = append(about, attribute.String("server.address", text.Excerpt(u.Hostname(), maxSpanText)))
	}
	return about
}

// endAttempt ends the attempt's span with the status and reason of d. err is the error of recording d, or nil. now
// returns the time of the end.
func (s *attemptSpans) endAttempt(d decision, err error, now func() time.Time) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.String("herald.status", string(d.Status)),
		attribute.String("herald.reason", string(d.verdict.Reason)))
	switch {
	case err != nil:
		s.span.SetStatus(codes.Error, "the outcome was not recorded")
	case d.isFailure():
		s.span.SetStatus(codes.Error, string(d.verdict.Reason))
	}
	s.span.End(trace.WithTimestamp(now()))
}

// isFailure reports whether the attempt's span shows an error: true, unless the delivery was delivered, skipped or
// queued again, or the outcome is a free wait without a call (putOff).
func (d decision) isFailure() bool {
	switch d.Status {
	case store.Delivered, store.Skipped, store.Queued:
		return false
	}
	return !d.putOff()
}

// formatTraceparent returns the traceparent header of the call: the trace of the delivery, and the span of the call. If
// there is no tracing, the header's flags say that the trace is not recorded (tracecontext.Delivery.Unrecorded).
func (a *attempt) formatTraceparent() string {
	t := tracecontext.Of(a.claim.ID, a.claim.Traceparent)
	if a.spans == nil {
		return t.Unrecorded()
	}
	return tracecontext.Format(t.TraceID, a.spans.call, a.spans.span.SpanContext().TraceFlags())
}
