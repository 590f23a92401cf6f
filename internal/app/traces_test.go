package app

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/tracingtest"
)

// TestTraces checks that a worker exports the traces of its deliveries to the collector, the last ones when it stops.
func TestTraces(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	var keyed atomic.Bool
	collector := tracingtest.New(t, func(c *tracingtest.Collector) {
		c.Refuse = func(r *http.Request) int {
			keyed.Store(r.Header.Get("X-Api-Key") == "very-secret key")
			return 0
		}
	})
	r := run(t, false, workerEnv(t, net, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL,
		"OTEL_EXPORTER_OTLP_HEADERS=x-api-key=very-secret%20key")...)
	w := r.up()
	a := openAgent(t)
	d := delivered(t, w.Store, accept(t, w, feedback(t, net, a.URL)))
	heraldtest.Must(t, r.stop())
	names := map[string]int{}
	for _, s := range collector.Spans() {
		if s.TraceID == d.TraceID && s.Resource["service.name"] == "herald" {
			names[s.Name]++
		}
	}
	heraldtest.Equal(t, "the spans", names, map[string]int{"accept": 1, "attempt": 1, "claim": 1, "check": 1, "resolve": 1, "fetch": 1, "connect": 1, "compose": 1, "call": 1, "record": 1})
	if !keyed.Load() || strings.Contains(r.log.String(), "very-secret") {
		t.Errorf("the header was sent: %t; the log says %s", keyed.Load(), r.log)
	}
}
