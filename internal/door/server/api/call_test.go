package api_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// toolCaller is a ToolCaller that returns the answer set by a test.
type toolCaller struct {
	mu     sync.Mutex
	answer mcpcall.Answer
	err    error
	seen   []job.DirectCall
	hold   chan struct{} // nil: it answers at once
	begun  chan struct{}
}

func (c *toolCaller) CallDirect(_ context.Context, call job.DirectCall, _ string) (mcpcall.Answer, error) {
	c.mu.Lock()
	c.seen = append(c.seen, call)
	answer, err, hold := c.answer, c.err, c.hold
	c.mu.Unlock()
	if hold != nil {
		c.begun <- struct{}{}
		<-hold
	}
	return answer, err
}

func (c *toolCaller) answers(raw string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer, c.err = mcpcall.Answer{}, err
	if raw != "" {
		c.answer.Raw = json.RawMessage(raw)
	}
}

const directCall = `{"endpoint":{"transport":"http","url":"https://agent.example/mcp","command":null,"args":null,"headers":{"X-Agent-Token":"s3cret"}},` +
	`"tool_name":"agent.receiveFeedback","arguments":{"score":95},"timeout_ms":30000}`

// TestCallTool: the answer always has the form of the old bridge, and its status shows which side caused an error.
func TestCallTool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.calls.answers(`{"content":[]}`, nil)
	if got := call[api.CallAnswer](w, 200, "POST", "/mcp/call", directCall); !got.Success || string(got.Result) != `{"content":[]}` || got.Error != "" {
		t.Errorf("%+v", got)
	}
	if got := w.calls.seen[0]; got.Tool != "agent.receiveFeedback" || got.Endpoint.URL != "https://agent.example/mcp" ||
		got.Endpoint.Headers["X-Agent-Token"].Reveal() != "s3cret" || got.TimeoutMs != 30000 || len(got.Arguments) != 1 {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		err    *delivery.DirectError
		status int
	}{
		{&delivery.DirectError{Reason: outcome.ToolError, Text: "it said no"}, 502},
		{&delivery.DirectError{Reason: outcome.ConnectFailed, Text: "nobody there"}, 502},
		{&delivery.DirectError{Reason: outcome.Unknown, Text: "too slow", TimedOut: true}, 504},
		{&delivery.DirectError{Reason: outcome.Throttled, Text: "too often", Wait: 1500 * time.Millisecond}, 429},
		{&delivery.DirectError{Reason: outcome.AddressBlocked, Text: "a private address"}, 400},
		{&delivery.DirectError{Reason: outcome.InternalError, Text: "who knows"}, 500},
	} {
		w.calls.answers(`{"isError":true}`, c.err)
		got := call[api.CallAnswer](w, c.status, "POST", "/mcp/call", directCall)
		if got.Success || got.Error != c.err.Text || got.Reason != c.err.Reason || string(got.Result) != `{"isError":true}` {
			t.Errorf("%+v", got)
		}
	}
	w.calls.answers("", &delivery.DirectError{Reason: outcome.AgentBusy, Text: "busy", Wait: 1500 * time.Millisecond})
	if got := w.send("POST", "/mcp/call", ownToken, "application/json", strings.NewReader(directCall)).Header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After: %q", got)
	}

	before := len(w.calls.seen)
	for body, field := range map[string]string{``: "", `[]`: "", `{}`: "endpoint", `{"endpoint":"https://a.example"}`: "tool_name",
		`{"endpoint":"ftp://a","tool_name":"agent.receiveFeedback"}`: "endpoint", `{"endpoint":"https://a","tool_name":"rm"}`: "tool_name",
		`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","arguments":[]}`:   "arguments",
		`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","timeout_ms":"x"}`: "timeout_ms"} {
		if got := call[api.CallAnswer](w, 400, "POST", "/mcp/call", body); got.Success || !strings.HasPrefix(got.Error, field) || got.Error == "" {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := callAs[api.CallAnswer](w, ownToken, 415, "POST", "/mcp/call", "text/plain", directCall); got.Error == "" {
		t.Errorf("%+v", got)
	}
	if got := call[api.CallAnswer](w, 413, "POST", "/mcp/call", strings.Repeat(" ", job.MaxCallBytes+1)); got.Error == "" {
		t.Errorf("%+v", got)
	}
	heraldtest.Equal(t, "calls after refused requests", len(w.calls.seen), before)
}

// TestCallsAtATime: a direct call uses memory of the worker as long as the agent takes, so the number of concurrent
// calls is limited.
func TestCallsAtATime(t *testing.T) {
	t.Parallel()
	const most = 12 // of 16: one token leaves a quarter to others
	w := newWorld(t)
	w.calls.hold, w.calls.begun = make(chan struct{}), make(chan struct{}, most)
	w.calls.answers(`{}`, nil)
	var all sync.WaitGroup
	for range most {
		all.Go(func() { w.send("POST", "/mcp/call", ownToken, "application/json", strings.NewReader(directCall)) })
	}
	for range most {
		<-w.calls.begun
	}
	heraldtest.Equal(t, "the reason", call[api.CallAnswer](w, 429, "POST", "/mcp/call", directCall).Reason,
		outcome.AgentBusy)
	close(w.calls.hold)
	all.Wait()
}
