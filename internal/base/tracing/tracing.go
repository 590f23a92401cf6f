// Package tracing sends a worker's spans to an OpenTelemetry collector, by OTLP over HTTP.
//
// Other packages determine the trace of a delivery (tracecontext), define the spans and their attributes (delivery),
// and decide whether tracing is enabled (config).
//
// Invariants: the package sets no global of OpenTelemetry, so that spans of other libraries are not sent here. An
// unavailable collector loses spans but never delays a delivery. Answers of the collector are untrusted text. The
// headers for the collector never appear in the log.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the tracer.
const scope = "github.com/agentherald/herald"

const (
	// closeTimeout bounds the sending of the last spans. Spans not sent by then are dropped.
	closeTimeout = 5 * time.Second
	// logInterval is the minimum interval between log lines about dropped spans.
	logInterval = time.Minute
)

// Config configures a Provider. The SDK reads all other settings from its standard variables: the sampler
// (OTEL_TRACES_SAMPLER), batches (OTEL_BSP_…), timeouts, compression and certificates (OTEL_EXPORTER_OTLP_…), limits of
// a span, and OTEL_RESOURCE_ATTRIBUTES.
type Config struct {
	Endpoint string            // the collector's URL for traces
	Headers  map[string]string // sent with each request to it; secrets
	Service  string            // service.name
	Version  string            // service.version
	Logger   *slog.Logger
}

// Provider creates tracers and owns the goroutine that sends their spans.
type Provider struct {
	collector string
	provider  *sdktrace.TracerProvider
	exporter  *exporter

	closeWithin time.Duration // closeTimeout, or less in tests
}

// Open returns a Provider without connecting to the collector. If the collector is unavailable, the log shows it when
// spans are sent.
func Open(cfg Config) (*Provider, error) {
	if cfg.Endpoint == "" || cfg.Service == "" || cfg.Logger == nil {
		return nil, errors.New("tracing: an endpoint, a service's name and a logger are needed")
	}
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, errors.New("tracing: the endpoint is no URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	inner, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(cfg.Endpoint),
		otlptracehttp.WithHeaders(cfg.Headers))
	if err != nil {
		return nil, fmt.Errorf("trace to %s: %w", u.Host, err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version)),
		resource.WithFromEnv()) // values from the environment replace those above
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &exporter{inner: inner, endpoint: cfg.Endpoint, log: cfg.Logger.With("collector", u.Host),
		mask: newMasker(cfg.Headers), ended: make(chan struct{})}
	return &Provider{collector: u.Host, exporter: e, closeWithin: closeTimeout,
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(e),
			sdktrace.WithResource(about), sdktrace.WithIDGenerator(idGenerator{}))}, nil
}

// newMasker returns a Masker for the headers' values, and for the token alone in "Bearer …".
func newMasker(headers map[string]string) *secret.Masker {
	var texts []string
	for _, value := range headers {
		texts = append(texts, value, value[strings.LastIndexByte(value, ' ')+1:])
	}
	return secret.NewMasker(texts)
}

// Collector returns the host that spans are sent to.
func (p *Provider) Collector() string { return p.collector }

// Tracer returns a tracer that creates spans.
func (p *Provider) Tracer() trace.Tracer { return p.provider.Tracer(scope) }

// Close sends the remaining spans within closeTimeout, and returns when the exporter has stopped. Further calls do
// nothing.
func (p *Provider) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), p.closeWithin)
	defer cancel()
	if p.provider.Shutdown(ctx) == nil {
		return
	}
	_ = p.exporter.inner.Shutdown(ctx) // aborts the current request; later ones fail immediately
	<-p.exporter.ended
}

// exporter logs the spans that the collector did not accept. The SDK would print the errors on standard error.
type exporter struct {
	inner    sdktrace.SpanExporter
	endpoint string // its path may contain a secret
	log      *slog.Logger
	mask     *secret.Masker
	ended    chan struct{} // closed when sending has stopped

	mu       sync.Mutex
	failed   int       // spans dropped since the last log line
	loggedAt time.Time // time of that line; zero: the last spans were accepted
}

// ExportSpans sends spans to the collector. It logs an error and never returns one.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.reportResult(len(spans), e.inner.ExportSpans(ctx, spans), time.Now())
	return nil
}

// Shutdown stops the exporter and closes e.ended.
func (e *exporter) Shutdown(ctx context.Context) error {
	defer close(e.ended)
	return e.inner.Shutdown(ctx)
}

// reportResult counts and logs dropped spans, at most once per logInterval, and logs when the collector accepts spans
// again.
func (e *exporter) reportResult(spans int, err error, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil:
		e.failed += spans
		if now.Sub(e.loggedAt) >= logInterval {
			why := e.mask.Replace(strings.ReplaceAll(err.Error(), e.endpoint, "the collector"))
			e.log.Warn("spans are dropped: the collector does not accept them; deliveries continue without them",
				"spans", e.failed, "error", text.Excerpt(why, 300))
			e.failed, e.loggedAt = 0, now
		}
	case !e.loggedAt.IsZero():
		e.log.Info("the collector accepts spans again", "dropped_since", e.failed)
		e.failed, e.loggedAt = 0, time.Time{}
	}
}

// idGenerator uses the ids in the context (tracecontext.IDs), and generates random ids if ctx has no ids.
type idGenerator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g idGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, _ := tracecontext.IDs(ctx)
	for !id.IsValid() {
		half, other := tracecontext.NewSpanID(), tracecontext.NewSpanID()
		copy(id[:8], half[:])
		copy(id[8:], other[:])
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (idGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if _, id := tracecontext.IDs(ctx); id.IsValid() {
		return id
	}
	return tracecontext.NewSpanID()
}
