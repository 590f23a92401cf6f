package delivery

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestStreamEndsBeforeHandshake: an agent is restarted while it answers the handshake or the list of its tools with an
// event stream. The feedback is delivered after the restart.
func TestStreamEndsBeforeHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	for _, during := range []string{"initialize", "tools/list"} {
		for name, c := range map[string]struct {
			begins string
			end    func()
		}{
			"stream is closed":     {": open\n\n", func() {}},
			"connection is cut":    {": open\n\n", func() { panic(http.ErrAbortHandler) }},
			"stream cannot resume": {"id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n", func() {}},
		} {
			w.runParallel(t, during+"/"+name, func(t *testing.T, w *world) {
				var restarted atomic.Bool
				a := newAgent(t, onAny(func(m string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
					if m != during || restarted.Swap(true) {
						return false
					}
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = w.Write([]byte(c.begins))
					_ = http.NewResponseController(w).Flush()
					c.end()
					return true
				}))
				w.ends(w.dispatchTo(a.URL), outcome.Delivered, "", 2)
				heraldtest.Equal(t, "calls", len(a.received()), 1)
			})
		}
	}
}

// TestToolsChangedSinceListed: an agent without sessions is restarted with other tools. SDKs answer isError, or the error
// -32602, to a call that no longer fits. The worker lists the tools again and makes the call that fits. If the tools did
// not change, or the tool ran and failed, the delivery is rejected after one call.
func TestToolsChangedSinceListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	for name, c := range map[string]struct {
		schema, tool, text string // text: of isError; "": the error -32602
		want               outcome.Reason
		calls              int
	}{
		"another schema":         {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "Input validation error: x", "", 3},
		"another schema, TS":     {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "MCP error -32602: x", "", 3},
		"another schema, Go":     {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", `validating \"arguments\": validating root: x`, "", 3},
		"another schema, Python": {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", `Error executing tool agent.receiveFeedback: 1 validation error for receive_feedbackArguments\nvalue\n`, "", 3},
		"another schema, Mastra": {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "Tool input validation failed for agent.receiveFeedback. Please fix", "", 3},
		"another schema, nest":   {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "Invalid parameters: [value]: x", "", 3},
		"another schema, ours":   {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "the arguments do not match the schema: x", "", 3},
		"another schema, tmcp":   {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "Invalid arguments for tool agent.receiveFeedback: []", "", 3},
		"another name":           {`{"type":"object","properties":{"value":{"type":"string"}}}`, "agent_receiveFeedback", "Unknown tool: x", "", 3},
		"another name, tmcp":     {`{"type":"object","properties":{"value":{"type":"string"}}}`, "agent_receiveFeedback", "Tool agent.receiveFeedback not found", "", 3},
		"no such tool":           {`{"type":"object"}`, "other", "MCP error -32602: Tool x not found", outcome.ToolError, 2},
		"the same tools":         {`{"type":"object","properties":{"value":{"type":"string"}}}`, "agent.receiveFeedback", "MCP error -32602: x", outcome.ToolError, 2},
		"the tool ran":           {`{"type":"object","properties":{"value":{"type":"number"}}}`, "agent.receiveFeedback", "the disk is full", outcome.ToolError, 2},
		"another name, an error": {`{"type":"object"}`, "agent_receiveFeedback", "", "", 3},
		"no such tool, an error": {`{"type":"object"}`, "other", "", outcome.ToolNotFound, 2},
	} {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			a := newAgent(t, func(a *agent) { a.schema = `{"type":"object","properties":{"value":{"type":"string"}}}` }, onCall(
				func(n int, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
					switch {
					case n == 2 && c.text == "":
						replyError(rw, id, -32602, "unknown tool")
					case n == 2:
						reply(rw, id, `{"isError":true,"content":[{"type":"text","text":"`+c.text+`"}]}`)
					}
					return n == 2
				}))
			id := w.register(at(a.URL))
			w.until(w.accept(w.feedback(id)), outcome.Delivered) // its tools are in the cache now
			a.mu.Lock()
			a.schema, a.tool = c.schema, c.tool
			a.mu.Unlock()
			d := w.row(w.accept(w.feedback(id)))
			heraldtest.Await(t, "the end", func() bool { d = w.row(d.ID); return d.Status.Final() })
			if n := len(a.received()); n != c.calls || d.Reason != c.want || d.Attempts != 1 || c.want == "" && d.ToolName != c.tool {
				t.Errorf("%s with %s after %d calls in %d attempts: %s", d.Reason, d.ToolName, n, d.Attempts, d.Error)
			}
		})
	}
}

// TestNotListedAfterRefusal: an SDK refuses a call while the agent is being replaced, and the agent cannot list its tools
// at once. The delivery waits, and the next attempt lists the new tools.
func TestNotListedAfterRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	const text, number = `{"type":"object","properties":{"value":{"type":"string"}}}`, `{"type":"object","properties":{"value":{"type":"number"}}}`
	var called, away atomic.Int64
	a := newAgent(t, func(a *agent) { a.schema = text }, onAny(
		func(method string, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
			switch {
			case method == "tools/call" && called.Add(1) == 2:
				away.Store(1)
				reply(rw, id, `{"isError":true,"content":[{"type":"text","text":"Input validation error: x"}]}`)
			case method == "tools/list" && away.CompareAndSwap(1, 0):
				http.Error(rw, "starting", http.StatusServiceUnavailable)
			default:
				return false
			}
			return true
		}))
	id := w.register(at(a.URL))
	w.until(w.accept(w.feedback(id)), outcome.Delivered) // its tools are in the cache now
	a.mu.Lock()
	a.schema = number
	a.mu.Unlock()
	w.ends(w.accept(w.feedback(id)), outcome.Delivered, "", 2)
	heraldtest.Equal(t, "calls", len(a.received()), 3)
}
