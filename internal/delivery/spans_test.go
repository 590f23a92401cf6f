package delivery

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/base/tracing"
	"github.com/agentherald/herald/internal/delivery/spans"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/tracingtest"
	"github.com/google/uuid"
)

const callerTrace, callerSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

// tracedWorker returns a worker whose spans go to a collector. flush stops it and returns the received spans.
func (w *world) tracedWorker() (k *worker, flush func() []tracingtest.Span) {
	w.t.Helper()
	collector := tracingtest.New(w.t)
	spans := must(tracing.Open(tracing.Config{Endpoint: collector.URL + "/v1/traces", Service: "herald", Version: "test", Logger: w.logger()}))
	w.t.Cleanup(spans.Close)
	k = w.newWorker(func(c *Config) { c.Tracer = spans.Tracer() })
	stop := w.serve(k)
	return k, func() []tracingtest.Span {
		stop()
		spans.Close()
		return collector.Spans()
	}
}

// drawTree returns the spans below parent, one per line, in the order of their start.
func drawTree(spans []tracingtest.Span, parent, indent string) string {
	below := slices.DeleteFunc(slices.Clone(spans), func(s tracingtest.Span) bool { return s.Parent != parent })
	slices.SortStableFunc(below, func(a, b tracingtest.Span) int { return a.Start.Compare(b.Start) })
	var b strings.Builder
	for _, s := range below {
		fmt.Fprintf(&b, "%s%s", indent, s.Name)
		for _, name := range []string{"herald.attempt", "herald.status", "mcp.tool.name", "server.address"} {
			if v := s.Attributes[name]; v != "" {
				fmt.Fprintf(&b, " %s=%s", name, v)
			}
		}
		if s.Failed {
			fmt.Fprintf(&b, " failed: %s", s.Message)
		}
		b.WriteString("\n" + drawTree(spans, s.SpanID, indent+"  "))
	}
	return b.String()
}

// TestTrace: a delivery that fails once and then succeeds is one trace, from the caller through both attempts to the
// agent.
func TestTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, flush := w.tracedWorker()
	a := newAgent(t, failsOnce())
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "very-secret-tag"})
	ctx := tracecontext.NewContext(heraldtest.Within(t, 20*time.Second), "00-"+callerTrace+"-"+callerSpan+"-01")
	answers := must(w.intake.Submit(ctx, [][]byte{asJSON(j)}, command))
	d := w.until(answers[0].ID, outcome.Delivered)
	heraldtest.Equal(t, "the row shows trace", d.TraceID, callerTrace)
	heraldtest.Await(t, "the last step", func() bool { n, _ := k.seen(d.ID, "record"); return n == 2 })
	spans := flush()

	got := drawTree(spans, callerSpan, "")
	const want = `accept
  attempt herald.attempt=1 herald.status=waiting failed: server_error
    claim
    check
    resolve
    fetch
    connect
    compose
    call mcp.tool.name=agent.receiveFeedback server.address=127.0.0.1 failed: server_error
    record
  attempt herald.attempt=2 herald.status=delivered
    claim
    check
    resolve
    fetch
    connect
    compose
    call mcp.tool.name=agent.receiveFeedback server.address=127.0.0.1
    record
`
	heraldtest.Equal(t, "the trace", got, want)
	var calls []string
	for _, s := range spans {
		if s.TraceID != callerTrace {
			t.Errorf("%s is in trace %s", s.Name, s.TraceID)
		}
		if s.End.Before(s.Start) {
			t.Errorf("%s ends before it begins", s.Name)
		}
		if text := fmt.Sprint(s.Attributes, s.Message); strings.Contains(text, "very-secret") || strings.Contains(text, "thank you") || strings.Contains(text, "down") {
			t.Errorf("%s holds what was sent or answered: %s", s.Name, text)
		}
		switch s.Name {
		case "call":
			calls = append(calls, "00-"+callerTrace+"-"+s.SpanID+"-01")
			heraldtest.Equal(t, "a call is of kind", s.Kind, "Client")
		case "accept", "attempt":
			for name, want := range map[string]string{"herald.delivery.id": d.ID.String(), "herald.delivery.key": d.Key,
				"herald.agent": fmt.Sprintf("%d:%s", d.ChainID, d.AgentID), "herald.kind": "NewFeedback"} {
				heraldtest.Equal(t, name+" of "+s.Name, s.Attributes[name], want)
			}
		}
	}
	for i, c := range a.received() {
		if header, member := c.header.Get("traceparent"), c.Meta["traceparent"]; header != member || header != calls[i] {
			t.Errorf("call %d was told %q and %q, its span is %q", i+1, header, member, calls[i])
		}
	}
}

// TestTraceOfItsOwn: without a caller's trace, the trace id is derived from the delivery's id. An attempt that does not
// count adds no second root.
func TestTraceOfItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, flush := w.tracedWorker()
	a := newAgent(t)
	registered := w.register(at(a.URL))
	w.enable(registered, false)
	id := w.accept(w.feedback(registered))
	w.until(id, outcome.Held)
	w.enable(registered, true)
	d := w.until(id, outcome.Delivered)
	heraldtest.Await(t, "the last step", func() bool { n, _ := k.seen(d.ID, "record"); return n == 2 })
	spans := flush()
	own := tracecontext.Of(d.ID, "")
	heraldtest.Equal(t, "the row shows trace", d.TraceID, own.TraceID.String())
	count := map[string]int{}
	for _, s := range spans {
		count[s.Name]++
		if s.TraceID != d.TraceID || s.Name == "accept" && (s.SpanID != own.Root.String() || s.Parent != "") || s.Name == "attempt" && s.Parent != own.Root.String() {
			t.Errorf("%+v", s)
		}
	}
	if d.Attempts != 1 || count["accept"] != 1 || count["attempt"] != 2 || count["call"] != 1 {
		t.Errorf("the trace has %v", count)
	}
}

// TestUntraced: with tracing off, the agent still gets the delivery's trace. A caller's trace is forwarded unchanged.
func TestUntraced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	a := newAgent(t)
	agent := w.register(at(a.URL))
	d := w.until(w.accept(w.feedback(agent)), outcome.Delivered)
	if got := a.received()[0]; !strings.HasPrefix(got.header.Get("traceparent"), "00-"+d.TraceID+"-") || !strings.HasSuffix(got.header.Get("traceparent"), "-00") ||
		got.Meta["traceparent"] != got.header.Get("traceparent") {
		t.Errorf("the agent was told %q and %v", got.header.Get("traceparent"), got.Meta["traceparent"])
	}
	const caller = "00-" + callerTrace + "-" + callerSpan + "-01"
	answers := must(w.intake.Submit(tracecontext.NewContext(heraldtest.Within(t, 20*time.Second), caller),
		[][]byte{asJSON(w.feedback(agent))}, command))
	w.until(answers[0].ID, outcome.Delivered)
	if got := a.received()[1]; got.header.Get("traceparent") != caller || got.Meta["traceparent"] != caller {
		t.Errorf("the agent was told %q and %v", got.header.Get("traceparent"), got.Meta["traceparent"])
	}
}

// TestTraceOffCostsNothing: with tracing off, the hooks do not allocate.
func TestTraceOffCostsNothing(t *testing.T) {
	e := &Executor{Config: Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now}} // with the usual log level
	a := &attempt{claim: &ledger.Claim{ID: uuid.New(), N: 1, Attempt: 1, Job: job.Job{Kind: job.KindNewFeedback}}, began: time.Now()}
	heraldtest.Equal(t, "allocations an attempt", testing.AllocsPerRun(1000, func() { // as the executor runs them
		a.stage = stage{name: "claim"}
		a.spans = spans.Begin(e.Tracer, a.claim, a.began)
		e.traceStep(a, "claim", "", nil, a.began)
		for _, name := range []string{"check", "resolve", "fetch", "connect", "compose", "call"} {
			e.beginStage(a, name)
		}
		_ = e.endStages(a, errAway, nil)
		e.traceStep(a, "record", "", nil, a.began)
		a.spans.End("", "", false, nil, e.Now())
	}), 0)
}
