// Package tracingtest provides an OpenTelemetry collector for tests. It receives spans by OTLP over HTTP and returns
// them.
package tracingtest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a received span.
type Span struct {
	Name, TraceID, SpanID, Parent string
	Kind                          string            // Internal, Client, …
	Attributes                    map[string]string // numbers are formatted as text
	Resource                      map[string]string
	Failed                        bool
	Message                       string // message of the status
	Start, End                    time.Time
}

// Collector receives the spans sent to its URL.
type Collector struct {
	*httptest.Server
	// Refuse returns the status with which a request is refused, or 0 to accept it. nil: all are accepted.
	Refuse func(r *http.Request) int

	mu    sync.Mutex
	spans []Span
}

// New starts a collector for the test. The adapt functions can configure it before the start.
func New(t testing.TB, adapt ...func(*Collector)) *Collector {
	t.Helper()
	c := &Collector{}
	for _, f := range adapt {
		f(c)
	}
	c.Server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// Spans returns the spans received so far, in the order of arrival.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// ServeHTTP receives one OTLP request.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if c.Refuse != nil {
		if status := c.Refuse(r); status != 0 {
			http.Error(w, "you sent "+r.Header.Get("Authorization"), status)
			return
		}
	}
	var request collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &request); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint("these are no spans: ", err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, newSpan(s, texts(of.GetResource().GetAttributes())))
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func newSpan(s *otlp.Span, resource map[string]string) Span {
	kinds := map[otlp.Span_SpanKind]string{otlp.Span_SPAN_KIND_INTERNAL: "Internal", otlp.Span_SPAN_KIND_CLIENT: "Client",
		otlp.Span_SPAN_KIND_PRODUCER: "Producer", otlp.Span_SPAN_KIND_CONSUMER: "Consumer"}
	return Span{Name: s.GetName(), TraceID: hex.EncodeToString(s.GetTraceId()), SpanID: hex.EncodeToString(s.GetSpanId()),
		Parent: hex.EncodeToString(s.GetParentSpanId()), Kind: kinds[s.GetKind()], Attributes: texts(s.GetAttributes()),
		Resource: resource, Failed: s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR,
		Message: s.GetStatus().GetMessage(), Start: time.Unix(0, int64(s.GetStartTimeUnixNano())),
		End: time.Unix(0, int64(s.GetEndTimeUnixNano()))}
}

func texts(attributes []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range attributes {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_IntValue:
			m[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		default:
			m[kv.GetKey()] = kv.GetValue().GetStringValue()
		}
	}
	return m
}
