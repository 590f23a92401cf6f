package delivery

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
)

// newDirect returns an executor that can make direct calls and no deliveries.
func newDirect(t *testing.T, l admission.Limiter) *Executor {
	t.Helper()
	pool := newPool(t, mcpcall.Config{Guard: guardtest.Loopback(t, nil)})
	return &Executor{Config: Config{Caller: pool, Origins: admission.Origins{Limiter: l, Unbound: l}, Now: time.Now,
		Metrics: must(NewMetrics(prometheus.NewRegistry())), CallTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}}
}

func directTo(url string) job.DirectCall {
	return job.DirectCall{Endpoint: job.Endpoint{Transport: "http", URL: url}, Tool: "agent.receiveFeedback",
		Arguments: map[string]any{"score": 95}}
}

// TestDirectCallFails: errors are described in Herald's words, with the tool's own answer if there is one.
func TestDirectCallFails(t *testing.T) {
	t.Parallel()
	d := newDirect(t, nil)
	wants := func(call job.DirectCall, why outcome.Reason, timedOut bool) mcpcall.Answer {
		t.Helper()
		answer, err := d.CallDirect(t.Context(), call, "a test")
		if failed, ok := errors.AsType[*DirectError](err); !ok || failed.Reason != why || failed.TimedOut != timedOut || err.Error() != failed.Text {
			t.Errorf("%s: %v %+v", why, err, failed)
		}
		return answer
	}
	wants(directTo(newAgent(t, breaksWith(500)).URL), outcome.ServerError, false)
	slow := directTo(newAgent(t, hangs()).URL)
	slow.TimeoutMs = 300
	wants(slow, outcome.Unknown, true)
	wants(directTo("http://10.0.0.1/mcp"), outcome.AddressBlocked, false)
	wants(directTo("http://127.0.0.1:1/mcp"), outcome.ConnectFailed, false)
	wants(job.DirectCall{Endpoint: job.Endpoint{Transport: "stdio", Command: "sh"}, Tool: "agent.receiveFeedback"}, outcome.TransportRefused, false)

	answer := wants(directTo(newAgent(t, answers(saysNo)).URL), outcome.ToolError, false)
	heraldtest.Contains(t, "the answer", string(answer.Raw), `"isError":true`)
}

// TestBreakerNamesItsCause: while the breaker is open, the refusal still says why the latest call failed.
func TestBreakerNamesItsCause(t *testing.T) {
	t.Parallel()
	d := newDirect(t, newLimiter(t, ratelimit.Config{MinCalls: 2}))
	for _, want := range []outcome.Reason{outcome.ConnectFailed, outcome.ConnectFailed, outcome.BreakerOpen} {
		_, err := d.CallDirect(t.Context(), directTo("http://127.0.0.1:1/mcp"), "a test")
		if failed, ok := errors.AsType[*DirectError](err); !ok || failed.Reason != want || !strings.Contains(failed.Text, "connection refused") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestDirectCallsShareLimits: direct calls use the limits of unbound agents, so that they cannot use up those of bound
// agents.
func TestDirectCallsShareLimits(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, ratelimit.Config{Rate: 0.01, Burst: 1, MaxWait: time.Millisecond})
	d := newDirect(t, l)
	a := newAgent(t)
	must(d.CallDirect(t.Context(), directTo(a.URL), "a test"))
	_, err := d.CallDirect(t.Context(), directTo(a.URL), "a test")
	if failed, ok := errors.AsType[*DirectError](err); !ok || failed.Reason != outcome.Throttled || failed.Wait <= 0 {
		t.Errorf("%v %+v", err, failed)
	}
	at := mcpcall.Endpoint{URL: a.URL}
	heraldtest.Equal(t, "the unbound breaker", l.Breaker(admission.OriginKey(at, erc8004.Agent{}, true), a.URL+"/?"),
		"closed")
	calls := a.received()
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	about, _ := calls[0].Meta[directMeta].(map[string]any)
	if verified, ok := about["verified"].(bool); !ok || verified || calls[0].Meta["io.agentherald/delivery"] != nil {
		t.Errorf("_meta of a direct call: %v", calls[0].Meta)
	}
}
