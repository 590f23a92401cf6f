package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/tracingtest"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func open(t *testing.T, endpoint string, log *heraldtest.Log) *Provider {
	t.Helper()
	p, err := Open(Config{Endpoint: endpoint, Headers: map[string]string{"Authorization": "Bearer very-secret-token"}, Service: "herald", Version: "v1",
		Logger: log.Logger(slog.LevelDebug)})
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// TestSpansArrive checks that Close exports the remaining spans, with the ids of tracecontext and the operator's
// headers, and that no global tracer provider is set.
func TestSpansArrive(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=v2")
	var authorized atomic.Bool
	c := tracingtest.New(t, func(c *tracingtest.Collector) {
		c.Refuse = func(r *http.Request) int {
			authorized.Store(r.Header.Get("Authorization") == "Bearer very-secret-token")
			return 0
		}
	})
	before := otel.GetTracerProvider()
	log := &heraldtest.Log{}
	p := open(t, c.URL+"/v1/traces", log)
	d := tracecontext.Of(uuid.New(), "")
	_, root := p.Tracer().Start(d.RootContext(), "root")
	below := tracecontext.NewSpanID()
	_, child := p.Tracer().Start(tracecontext.WithSpanID(trace.ContextWithSpan(context.Background(), root), below), "child")
	_, other := p.Tracer().Start(context.Background(), "another trace")
	for _, s := range []trace.Span{child, root, other} {
		s.End()
	}
	p.Close()
	p.Close()
	spans := map[string]tracingtest.Span{}
	for _, s := range c.Spans() {
		spans[s.Name] = s
	}
	if r := spans["root"]; len(spans) != 3 || r.TraceID != d.TraceID.String() || r.SpanID != d.Root.String() || r.Parent != "" {
		t.Errorf("the root is %+v of %d spans", r, len(spans))
	}
	if s := spans["child"]; s.TraceID != d.TraceID.String() || s.SpanID != below.String() || s.Parent != d.Root.String() {
		t.Errorf("the child is %+v", s)
	}
	if s := spans["another trace"]; s.TraceID == d.TraceID.String() || strings.Trim(s.TraceID, "0") == "" || strings.Trim(s.SpanID, "0") == "" {
		t.Errorf("the other span is %+v", s)
	}
	about := spans["root"].Resource
	for name, want := range map[string]string{"service.name": "herald", "service.version": "v2", "deployment.environment": "test"} {
		heraldtest.Equal(t, name, about[name], want)
	}
	if !authorized.Load() {
		t.Error("the collector was not sent the operator's header")
	}
	if otel.GetTracerProvider() != before {
		t.Error("a provider was set for the whole process")
	}
	heraldtest.Equal(t, "the log", log.String(), "")
}

// TestCollectorThatRefuses checks that refusals by the collector are logged once, without the headers that were sent,
// and that its recovery is logged too.
func TestCollectorThatRefuses(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	c := tracingtest.New(t, func(c *tracingtest.Collector) {
		c.Refuse = func(*http.Request) int {
			if well.Load() {
				return 0
			}
			return http.StatusForbidden
		}
	})
	log := &heraldtest.Log{}
	p := open(t, c.URL+"/v1/traces", log)
	send := func() {
		_, s := p.Tracer().Start(context.Background(), "one")
		s.End()
		if err := p.provider.ForceFlush(heraldtest.Within(t, 20*time.Second)); err != nil {
			t.Error(err)
		}
	}
	send()
	send()
	if said := log.String(); log.Count("spans are dropped") != 1 || strings.Contains(said, "very-secret") || !strings.Contains(said, "403") ||
		strings.Contains(said, "/v1/traces") {
		t.Errorf("the log says %s", said)
	}
	well.Store(true)
	send()
	if log.Count("the collector accepts spans again") != 1 || log.Count("dropped_since=1") != 1 || len(c.Spans()) != 1 {
		t.Errorf("the log says %s; %d spans came", log, len(c.Spans()))
	}
}

// TestCollectorThatSaysNothing checks that neither ending spans nor closing waits long for a silent collector, and that
// no goroutine is left (goleak).
func TestCollectorThatSaysNothing(t *testing.T) {
	t.Parallel()
	log := &heraldtest.Log{}
	p := open(t, "http://"+heraldtest.Silent(t)+"/v1/traces", log)
	p.closeWithin = 100 * time.Millisecond
	began := time.Now()
	for range 10_000 { // more than the queue holds
		_, s := p.Tracer().Start(context.Background(), "one")
		s.End()
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("10,000 spans took %s", took)
	}
	p.Close()
	if took := time.Since(began); took > 3*closeTimeout {
		t.Errorf("closing took %s", took)
	}
	if log.Count("spans are dropped") != 1 {
		t.Errorf("the log says %s", log)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Endpoint: "http://c"}, {Endpoint: "http://c", Service: "s"}, {Endpoint: "http://c\x00", Service: "s", Logger: slog.Default()}} {
		if p, err := Open(cfg); err == nil {
			p.Close()
			t.Errorf("%+v is taken", cfg)
		}
	}
}
