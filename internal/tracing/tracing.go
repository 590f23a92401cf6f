// Package tracing sends a worker's spans to an OpenTelemetry collector, over OTLP and HTTP.
//
// What does not live here: which trace a delivery belongs to (tracecontext), what is a span and what is said of it
// (delivery), whether anything is traced at all (config).
//
// Invariants: nothing is set for the whole process, so that what other libraries trace stays where it is; a collector
// that is away costs spans, never time; what it answers is foreign text, and the headers that it is sent are in no line
// of the log.
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

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
	"github.com/agentherald/herald/internal/tracecontext"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope names who makes the spans.
const scope = "github.com/agentherald/herald"

const (
	// closeTimeout bounds the sending of the last spans; what is not sent by then is dropped.
	closeTimeout = 5 * time.Second
	// tellInterval is how often the log says that spans are not taken.
	tellInterval = time.Minute
)

// Config makes a Provider. What is not here the SDK reads from its standard variables itself: the sampler
// (OTEL_TRACES_SAMPLER), batches (OTEL_BSP_…), timeouts, compression and certificates (OTEL_EXPORTER_OTLP_…), limits of
// a span, OTEL_RESOURCE_ATTRIBUTES.
type Config struct {
	Endpoint string            // the collector's URL for traces
	Headers  map[string]string // of each request to it; secrets
	Service  string            // service.name
	Version  string            // service.version
	Logger   *slog.Logger
}

// Provider owns the goroutine that sends spans.
type Provider struct {
	collector string
	provider  *sdktrace.TracerProvider
	exporter  *exporter
}

// Open does not connect: a collector that is away shows in the log, once there are spans.
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
		resource.WithFromEnv()) // what is said twice is taken from the environment
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &exporter{inner: inner, endpoint: cfg.Endpoint, log: cfg.Logger.With("collector", u.Host),
		mask: newMasker(cfg.Headers), ended: make(chan struct{})}
	return &Provider{collector: u.Host, exporter: e, provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(e),
		sdktrace.WithResource(about), sdktrace.WithIDGenerator(idGenerator{}))}, nil
}

// newMasker masks the headers' values, and of "Bearer …" the token alone too.
func newMasker(headers map[string]string) *secret.Masker {
	var texts []string
	for _, value := range headers {
		texts = append(texts, value, value[strings.LastIndexByte(value, ' ')+1:])
	}
	return secret.NewMasker(texts)
}

// Collector is the host that spans are sent to.
func (p *Provider) Collector() string { return p.collector }

// Tracer makes spans.
func (p *Provider) Tracer() trace.Tracer { return p.provider.Tracer(scope) }

// Close sends what is left, for closeTimeout at most, and returns when nothing is sent any more. Again it does nothing.
func (p *Provider) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if p.provider.Shutdown(ctx) == nil {
		return
	}
	_ = p.exporter.inner.Shutdown(ctx) // cuts off the request under way; the rest fails at once
	<-p.exporter.ended
}

// exporter reports what the collector did not take. The SDK would print it on standard error.
type exporter struct {
	inner    sdktrace.SpanExporter
	endpoint string // its path may be a secret
	log      *slog.Logger
	mask     *secret.Masker
	ended    chan struct{} // closed when nothing is sent any more

	mu     sync.Mutex
	failed int       // spans that were not taken since the log said so
	told   time.Time // when it did; zero: the last ones were taken
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.reportResult(len(spans), e.inner.ExportSpans(ctx, spans), time.Now())
	return nil
}

func (e *exporter) Shutdown(ctx context.Context) error {
	defer close(e.ended)
	return e.inner.Shutdown(ctx)
}

func (e *exporter) reportResult(spans int, err error, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil:
		e.failed += spans
		if now.Sub(e.told) >= tellInterval {
			why := e.mask.Replace(strings.ReplaceAll(err.Error(), e.endpoint, "the collector"))
			e.log.Warn("spans are dropped: the collector does not take them; deliveries go on without", "spans", e.failed,
				"error", text.Excerpt(why, 300))
			e.failed, e.told = 0, now
		}
	case !e.told.IsZero():
		e.log.Info("the collector takes spans again", "dropped_since", e.failed)
		e.failed, e.told = 0, time.Time{}
	}
}

// idGenerator gives spans the ids that tracecontext says, and draws the others.
type idGenerator struct{}

func (g idGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, _ := tracecontext.IDs(ctx)
	for !id.IsValid() {
		half, other := tracecontext.NewSpanID(), tracecontext.NewSpanID()
		copy(id[:8], half[:])
		copy(id[8:], other[:])
	}
	return id, g.NewSpanID(ctx, id)
}

func (idGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if _, id := tracecontext.IDs(ctx); id.IsValid() {
		return id
	}
	return tracecontext.NewSpanID()
}
