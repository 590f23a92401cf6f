// Package spans makes the OpenTelemetry spans of an attempt, in the trace of its delivery: one for the attempt, whose
// parent is the delivery's root span, and one for each step that has ended. Package tracecontext makes the ids.
//
// The spans contain few texts of agents and clients: the key, the tool's name and the endpoint's host. A failed span
// contains only the reason. Requests and answers are in Postgres, in the row with the id herald.delivery.id.
package spans

import (
	"context"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Attempt has the spans of one attempt. Nil: there is no tracing.
type Attempt struct {
	tracer trace.Tracer
	span   trace.Span
	call   trace.SpanID // id of the span of the step call; the agent receives this id before the span exists
}

// maxSpanText bounds each text of agents and clients in a span, in bytes.
const maxSpanText = 300

// Begin starts the span of the attempt of the claim c, which began at this time. It returns nil if tracer is nil.
//
// The root span of the delivery lasts from its acceptance to its first claim, and has the same ids in every process.
// Each attempt starts the root span again, so that the sampler makes the same decision for the whole trace. Only the
// first attempt ends the root span, which exports it.
func Begin(tracer trace.Tracer, c *ledger.Claim, began time.Time) *Attempt {
	if tracer == nil {
		return nil
	}
	about := trace.WithAttributes(
		attribute.String("herald.delivery.id", c.ID.String()),
		attribute.String("herald.delivery.key", text.Excerpt(c.Key, maxSpanText)),
		attribute.String("herald.kind", text.Excerpt(string(c.Job.Kind), maxSpanText)),
		attribute.String("herald.agent", c.Agent().String()))
	_, root := tracer.Start(tracecontext.Of(c.ID, c.Traceparent).RootContext(), "accept", about,
		trace.WithTimestamp(c.CreatedAt), trace.WithSpanKind(trace.SpanKindProducer))
	if !c.Again {
		root.End(trace.WithTimestamp(c.StartedAt))
	}

	s := &Attempt{tracer: tracer, call: tracecontext.NewSpanID()}
	_, s.span = tracer.Start(trace.ContextWithSpan(context.Background(), root), "attempt", about,
		trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.Int("herald.attempt", c.Attempt)))
	return s
}

// Step is a step of the attempt that has ended.
type Step struct {
	Name         string
	Err          error // nil: it succeeded
	Began, Ended time.Time
	Tool, URL    string // of the step call: the called tool, and the endpoint
}

// AddStep adds the span of a step.
func (s *Attempt) AddStep(step Step) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	ctx := trace.ContextWithSpan(context.Background(), s.span)
	options := []trace.SpanStartOption{trace.WithTimestamp(step.Began)}
	if step.Name == "call" {
		ctx = tracecontext.WithSpanID(ctx, s.call)
		options = append(options, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(step.listAttributes()...))
	}
	_, span := s.tracer.Start(ctx, step.Name, options...)
	if step.Err != nil {
		span.SetStatus(codes.Error, string(classify.Error(step.Err).Reason))
	}
	span.End(trace.WithTimestamp(step.Ended))
}

// listAttributes returns span attributes for the name of the called tool and the host of the endpoint.
func (step Step) listAttributes() []attribute.KeyValue {
	about := []attribute.KeyValue{attribute.String("mcp.tool.name", text.Excerpt(step.Tool, maxSpanText))}
	if u, err := url.Parse(step.URL); err == nil && u.Hostname() != "" {
		about = append(about, attribute.String("server.address", text.Excerpt(u.Hostname(), maxSpanText)))
	}
	return about
}

// End ends the attempt's span with the status and the reason of its outcome. failed says that the outcome is an error.
// unrecorded is the error of recording the outcome, or nil.
func (s *Attempt) End(status outcome.Status, reason outcome.Reason, failed bool, unrecorded error, at time.Time) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.String("herald.status", string(status)),
		attribute.String("herald.reason", string(reason)))
	switch {
	case unrecorded != nil:
		s.span.SetStatus(codes.Error, "the outcome was not recorded")
	case failed:
		s.span.SetStatus(codes.Error, string(reason))
	}
	s.span.End(trace.WithTimestamp(at))
}

// Traceparent returns the traceparent header of the call of the claim c: the trace of the delivery, and the span of the
// call. If there is no tracing, the header's flags say that the trace is not recorded
// (tracecontext.Delivery.Unrecorded).
func (s *Attempt) Traceparent(c *ledger.Claim) string {
	t := tracecontext.Of(c.ID, c.Traceparent)
	if s == nil {
		return t.Unrecorded()
	}
	return tracecontext.Format(t.TraceID, s.call, s.span.SpanContext().TraceFlags())
}
