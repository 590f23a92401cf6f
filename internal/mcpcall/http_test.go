package mcpcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const feedbackTool = "agent.receiveFeedback"

// realServer returns an agent made with mcp-go. Its tool returns its arguments.
func realServer(opts ...server.StreamableHTTPOption) *httptest.Server {
	return httptest.NewServer(server.NewStreamableHTTPServer(realTools(), opts...))
}

func realTools() *server.MCPServer {
	s := server.NewMCPServer("test-agent", "1.2.3", server.WithToolCapabilities(true))
	s.AddTool(mcp.NewToolWithRawSchema(feedbackTool, "", json.RawMessage(`{"type":"object","anyOf":[{"required":["value"]}],"properties":{"value":{"type":"string"}},"x-kept":true}`)),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultJSON(map[string]any{"arguments": r.Params.Arguments, "meta": r.Params.Meta.AdditionalFields["io.agentherald/delivery"]})
		})
	s.AddTool(mcp.NewToolWithRawSchema("fails", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultError("not today"), nil
	})
	return s
}

// TestClientVersion checks that the agent receives the version of this build as the client's version, in the form of
// `worker --version`.
func TestClientVersion(t *testing.T) {
	t.Parallel()
	got := make(chan mcp.Implementation, 1)
	hooks := &server.Hooks{}
	hooks.AddAfterInitialize(func(_ context.Context, _ any, r *mcp.InitializeRequest, _ *mcp.InitializeResult) {
		got <- r.Params.ClientInfo
	})
	srv := httptest.NewServer(server.NewStreamableHTTPServer(server.NewMCPServer("test-agent", "1.2.3",
		server.WithToolCapabilities(true), server.WithHooks(hooks))))
	defer srv.Close()
	ctx := heraldtest.Within(t, 30*time.Second)
	_, err := newPool(t).Tools(ctx, Endpoint{Transport: TransportHTTP, URL: srv.URL}, false)
	heraldtest.Must(t, err)
	if info := <-got; info.Name != "herald" || !strings.HasPrefix(buildinfo.Version(), info.Version+" (") {
		t.Errorf("%+v of %s", info, buildinfo.Version())
	}
}

func TestRealServerOverHTTP(t *testing.T) {
	t.Parallel()
	for name, hint := range map[string]string{"legacy": "", "modern": "2026-07-28", "future": "2027-01-01"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := realServer()
			defer srv.Close()
			p := newPool(t)
			ep := Endpoint{Transport: TransportHTTP, URL: srv.URL, ProtocolHint: hint}
			ctx := heraldtest.Within(t, 30*time.Second)

			set := mustList(t, p, ep)
			want := legacyVersion
			if hint != "" {
				want = modernVersion
			}
			if set.Server != (ServerInfo{"test-agent", "1.2.3"}) || set.Protocol != want || set.Cut {
				t.Errorf("got %+v", set)
			}
			tool, ok := Find(set.Tools, feedbackTool, nil)
			if !ok || !strings.Contains(string(tool.InputSchema), `"x-kept"`) || !strings.Contains(string(tool.InputSchema), "anyOf") {
				t.Fatalf("schema not as sent: %s", tool.InputSchema)
			}
			args, err := Fit(tool, map[string]any{"value": "9977"})
			heraldtest.Must(t, err)
			a := mustCall(t, p, ep, Request{Tool: tool.Name, Arguments: args, Meta: map[string]any{"io.agentherald/delivery": map[string]any{"attempt": 1}}})
			if a.Protocol != want || a.IsError || a.Unreadable || a.Text != `{"arguments":{"value":"9977"},"meta":{"attempt":1}}` {
				t.Errorf("got %+v", a)
			}
			a, err = p.Call(ctx, ep, Request{Tool: "fails"})
			if err != nil || !a.IsError || a.Text != "not today" {
				t.Errorf("isError: %+v, %v", a, err)
			}
			_, err = p.Call(ctx, ep, Request{Tool: "unknown"})
			var e *CallError
			if !errors.As(err, &e) || e.Code != mcp.INVALID_PARAMS || e.Stage != StageCall || !e.Written {
				t.Errorf("unknown tool: %#v", err)
			}
		})
	}
}

// agent is a minimal MCP server that can misbehave. It speaks 2025-11-25 over JSON.
type agent struct {
	session string // returned by initialize if not empty
	tools   string // the result of tools/list
	// on is called first for each method and returns true if it answered. It is called from several goroutines.
	on func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool

	mu    sync.Mutex
	count map[string]int
}

func (a *agent) seen(method string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count[method]
}

// onMethod makes do answer one method instead of the agent.
func onMethod(name string, do func(w http.ResponseWriter, r *http.Request, id json.RawMessage)) func(string,
	http.ResponseWriter, *http.Request, json.RawMessage) bool {
	return func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		if method == name {
			do(w, r, id)
		}
		return method == name
	}
}

func reply(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// writeStatus answers with an HTTP status, a body and headers, given as alternating names and values.
func writeStatus(w http.ResponseWriter, code int, body string, header ...string) {
	for i := 0; i+1 < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage
		Method string
	}
	if r.Method == http.MethodPost {
		_ = json.NewDecoder(r.Body).Decode(&req)
	} else {
		req.Method = r.Method
	}
	a.mu.Lock()
	if a.count == nil {
		a.count = map[string]int{}
	}
	a.count[req.Method]++
	a.mu.Unlock()
	if a.on != nil && a.on(req.Method, w, r, req.ID) {
		return
	}
	switch req.Method {
	case "initialize":
		if a.session != "" {
			w.Header().Set("Mcp-Session-Id", a.session)
		}
		reply(w, req.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"by-hand","version":"0"}}`)
	case "tools/list":
		reply(w, req.ID, a.tools)
	case "tools/call":
		reply(w, req.ID, `{"content":[{"type":"text","text":"ok"}]}`)
	case "server/discover":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, req.ID)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func callOnce(t *testing.T, h http.Handler, adapt ...func(*Config)) (Answer, *CallError) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	p := newPool(t, adapt...)
	a, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: feedbackTool})
	var e *CallError
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("%T is no *CallError: %v", err, err)
	}
	if e != nil {
		t.Log(e)
	}
	return a, e
}

// TestQuotedIDs calls agents behind a gateway that turns the numeric ids of requests into strings. The official clients
// for TypeScript and Python accept such answers too.
func TestQuotedIDs(t *testing.T) {
	t.Parallel()
	numeric := regexp.MustCompile(`"id":([0-9]+)`)
	for name, h := range map[string]http.Handler{TransportHTTP: &agent{}, TransportSSE: &streamAgent{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(numeric.ReplaceAll(body, []byte(`"id":"$1"`))))
				h.ServeHTTP(w, r)
			}))
			a, err := newPool(t).Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: name, URL: srv.URL}, Request{Tool: feedbackTool})
			if err != nil || a.Text != "ok" {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

// TestAcceptedForms calls agents whose answers have a form that the official client for TypeScript accepts too.
func TestAcceptedForms(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ kind, answer string }{ // %s: a response
		"byte order mark":                    {"application/json", "\uFEFF%s"},
		"byte order mark of an event stream": {"text/event-stream", "\uFEFFdata: %s\n\n"},
		"batch of one":                       {"application/json", " [ %s ]\n"},
		"content type in other case":         {"Application/JSON; Charset=UTF-8", "%s"},
		"content type with broken parameter": {"application/json; charset", "%s"},
		"content type that ends in ;":        {"application/json;charset=utf-8;", "%s"},
		"events, content type in other case": {"Text/Event-Stream;charset=UTF-8", "data: %s\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, e := callOnce(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				plain := httptest.NewRecorder()
				(&agent{}).ServeHTTP(plain, r)
				if plain.Code == http.StatusOK {
					w.Header().Set("Content-Type", tt.kind)
					fmt.Fprintf(w, tt.answer, plain.Body)
				} else {
					w.WriteHeader(plain.Code)
				}
			}))
			if e != nil || a.Text != "ok" {
				t.Errorf("%+v", a)
			}
		})
	}
}

func TestMisbehavingAgents(t *testing.T) {
	t.Parallel()
	onCall := func(f func(w http.ResponseWriter, r *http.Request, id json.RawMessage)) *agent {
		return &agent{on: onMethod("tools/call", f)}
	}
	status := func(code int, body string, header ...string) *agent {
		return onCall(func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			writeStatus(w, code, body, header...)
		})
	}
	hijack := func(w http.ResponseWriter, f func(c net.Conn)) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		f(c)
		_ = c.Close()
	}
	events := func(f func(w http.ResponseWriter, id json.RawMessage)) *agent {
		return onCall(func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			w.Header().Set("Content-Type", "text/event-stream")
			f(w, id)
		})
	}
	tests := []struct {
		name   string
		agent  *agent
		answer string // Text of a successful answer
		want   CallError
		as     any
	}{
		{name: "events", agent: events(func(w http.ResponseWriter, id json.RawMessage) {
			fmt.Fprintf(w, ": hello\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\ndata: \"result\":{\"content\":[{\"type\":\"text\",\"text\":\"streamed\"}]}}\n\n", id)
		}), answer: "streamed"},
		{name: "structured without content", agent: onCall(func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			reply(w, id, `{"structuredContent":{"a":1}}`)
		}), answer: `{"a":1}`},
		{name: "503 with Retry-After", agent: status(503, "busy", "Retry-After", "15"), want: CallError{Status: 503, RetryAfter: 15 * time.Second, Written: true}},
		{name: "429 with JSON", agent: status(429, `{"error":{"message":"slow down"}}`, "Retry-After", "3", "Content-Type", "application/json"), want: CallError{Status: 429, RetryAfter: 3 * time.Second, Written: true}},
		{name: "429 with JSON of another kind", agent: status(429, `{"detail":"slow"}`, "Retry-After", "3"), want: CallError{Status: 429, RetryAfter: 3 * time.Second, Written: true}},
		{name: "500 with empty JSON", agent: status(500, `{}`, "Content-Type", "application/json"), want: CallError{Status: 500, Written: true}},
		{name: "500 with a result", agent: status(500, `{"jsonrpc":"2.0","id":3,"result":{"content":[]}}`), want: CallError{Status: 500, Written: true}},
		{name: "502 without body", agent: status(502, ``), want: CallError{Status: 502, Written: true}},
		{name: "400 with code", agent: status(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}`), want: CallError{Status: 400, Code: -32602, Written: true}},
		{name: "401", agent: status(401, ``, "WWW-Authenticate", `Bearer resource_metadata="http://127.0.0.1:1/x"`), want: CallError{Status: 401, Written: true}},
		{name: "404 without session", agent: status(404, ``), want: CallError{Status: 404, Written: true}},
		{name: "JSON-RPC error", agent: onCall(func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32099,"message":"own\u0000code"}}`, id)
		}), want: CallError{Code: -32099, Written: true}},
		{name: "JSON-RPC error of a request that was not parsed", agent: status(200, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`, "Content-Type", "application/json"), want: CallError{Code: -32700, Written: true}},
		{name: "JSON-RPC error without id, in a batch", agent: status(200, `[{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}]`, "Content-Type", "application/json"), want: CallError{Code: -32600, Written: true}},
		{name: "result without id", agent: status(200, `{"jsonrpc":"2.0","id":null,"result":{"content":[]}}`, "Content-Type", "application/json"), want: CallError{Written: true}},
		{name: "HTML", agent: status(200, `<html>`, "Content-Type", "text/html"), want: CallError{Written: true}, as: new(*BadAnswerError)},
		{name: "not JSON", agent: status(200, `{"jsonrpc":`, "Content-Type", "application/json"), want: CallError{Written: true}},
		{name: "no result", agent: onCall(func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s}`, id)
		}), want: CallError{Written: true}, as: new(*BadAnswerError)},
		{name: "another request's id", agent: onCall(func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			reply(w, json.RawMessage(`"other"`), `{"content":[]}`)
		}), want: CallError{Written: true}, as: new(*BadAnswerError)},
		{name: "event of many lines", agent: events(func(w http.ResponseWriter, _ json.RawMessage) {
			_, _ = io.WriteString(w, strings.Repeat("data: x\n", 10000)+"\n")
		}), want: CallError{Written: true}, as: new(*TooLargeError)},
		{name: "events end early", agent: events(func(w http.ResponseWriter, _ json.RawMessage) { _, _ = io.WriteString(w, ": bye\n\n") }), want: CallError{Written: true}},
		{name: "reset after reading", agent: onCall(func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			hijack(w, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })
		}), want: CallError{Written: true}},
		{name: "half an answer", agent: onCall(func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			hijack(w, func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"jsonrpc\"")
			})
		}), want: CallError{Written: true}},
		{name: "wants input", agent: onCall(func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			reply(w, id, `{"resultType":"input_required","inputRequests":{}}`)
		}), want: CallError{Written: true}, as: new(*InputRequiredError)},
		{name: "202 without answer", agent: status(202, ``), want: CallError{Written: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, e := callOnce(t, tt.agent)
			if tt.answer != "" {
				if e != nil || a.Text != tt.answer {
					t.Fatalf("got %+v, %v", a, e)
				}
				return
			}
			if e == nil {
				t.Fatalf("no error: %+v", a)
			}
			tt.want.Stage = StageCall
			expectFailure(t, "the call", e, tt.want)
			if tt.as != nil && !errors.As(e, tt.as) {
				t.Errorf("%T: %v", e.Err, e.Err)
			}
			heraldtest.Equal(t, "tools/call requests", tt.agent.seen("tools/call"), 1)
		})
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	hang := func(on string, ctx *deadline) *agent {
		return &agent{on: func(method string, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
			if method == on {
				if on == "tools/call" {
					ctx.pass()
				}
				<-r.Context().Done()
			}
			return method == on
		}}
	}
	for on, want := range map[string]CallError{
		"tools/call": {Stage: StageCall, Written: true, Timeout: true},
		"initialize": {Stage: StageOpen, Timeout: true},
	} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			ctx := newDeadline(t)
			srv := httptest.NewServer(hang(on, ctx))
			defer srv.Close()
			p := newPool(t, func(c *Config) {
				if on == "initialize" { // initialize does not wait for the call's deadline
					c.OpenTimeout = 300 * time.Millisecond
				}
			})
			start := time.Now()
			_, err := p.Call(ctx, Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			expectFailure(t, "the call", err, want, context.DeadlineExceeded)
		})
	}
}

func TestUnwrittenRequest(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: "http://" + heraldtest.Address(t) + "/mcp?key=hidden-token"}, Request{Tool: "x"})
	expectFailure(t, "an address without a server", err, CallError{Stage: StageOpen})
	heraldtest.Lacks(t, "the error", err.Error(), "hidden-token")
	_, err = p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: "http://10.1.2.3:8080/mcp"}, Request{Tool: "x"})
	var refused *netguard.RefusedURLError
	if !errors.As(err, new(*netguard.BlockedError)) && !errors.As(err, &refused) || !errors.As(err, new(*CallError)) {
		t.Errorf("private address: %#v", err)
	}
}

// TestUnwrittenCall checks that the error reports nothing written if the agent ended after its client was
// opened. A connection that was just used may not be idle yet and then accepts the call's bytes, so the test tries
// again.
func TestUnwrittenCall(t *testing.T) {
	t.Parallel()
	var e *CallError
	for range 5 {
		e = callDeadAgent(t)
		if e != nil && e.Stage == StageCall && !e.Written && !e.Timeout {
			return
		}
	}
	t.Errorf("got %#v", e)
}

// callDeadAgent opens a client of an agent, stops the agent, calls it and returns the error.
func callDeadAgent(t *testing.T) (failure *CallError) {
	t.Helper()
	at := heraldtest.Address(t)
	l, err := net.Listen("tcp", at)
	heraldtest.Must(t, err)
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: &agent{tools: `{"tools":[]}`}, ReadHeaderTimeout: time.Second}}
	srv.Start()
	p, ep := newPool(t), Endpoint{Transport: TransportHTTP, URL: "http://" + at}
	mustList(t, p, ep)
	srv.CloseClientConnections()
	srv.Close()
	p.base.CloseIdleConnections() // as if the closing of the connections had been noticed
	_, err = p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "x"})
	errors.As(err, &failure)
	return failure
}

func TestSessionGone(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(w http.ResponseWriter){
		"404": func(w http.ResponseWriter) { w.WriteHeader(404) },
		"400": func(w http.ResponseWriter) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var current atomic.Int32 // sessions up to this number are unknown
			var given atomic.Int32
			a := &agent{on: func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
				if method == "initialize" {
					w.Header().Set("Mcp-Session-Id", fmt.Sprint(given.Add(1)))
					return false
				}
				if r.Header.Get("Mcp-Session-Id") == fmt.Sprint(current.Load()) {
					refuse(w)
					return true
				}
				return false
			}}
			ctx, p, ep := dial(t, a)
			for want := range 3 {
				current.Store(int32(want)) // in the first round (0) no session is forgotten
				answer, err := p.Call(ctx, ep, Request{Tool: "x"})
				if err != nil || answer.Text != "ok" {
					t.Fatalf("after %d: %v", want, err)
				}
			}
			heraldtest.Equal(t, "initialize requests", a.seen("initialize"), 3)

			// A server that does not know any session gets exactly one retry.
			a2 := &agent{session: "s", on: onMethod("tools/call", func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
				refuse(w)
			})}
			_, e := callOnce(t, a2)
			if e == nil || !errors.Is(e, ErrSessionGone) || e.Written || a2.seen("tools/call") != 2 {
				t.Errorf("%v after %d calls", e, a2.seen("tools/call"))
			}
		})
	}
}

// FuzzHTTPAnswer checks that any answer leads to an Answer or a *CallError before the deadline.
func FuzzHTTPAnswer(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`), false, 200)
	f.Add([]byte("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n"), true, 200)
	f.Add([]byte("id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}\n\n"), true, 200)
	f.Add([]byte(`{"error":"text"}`), false, 500)
	type answer struct {
		body   []byte
		events bool
		status int
	}
	var next atomic.Pointer[answer]
	srv := httptest.NewServer(&agent{on: func(method string, w http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		if method != "tools/call" {
			return r.Method == http.MethodGet
		}
		a := next.Load()
		w.Header().Set("Content-Type", "application/json")
		if a.events {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
		return true
	}})
	f.Cleanup(srv.Close)
	p := newPool(f)
	f.Fuzz(func(t *testing.T, body []byte, events bool, status int) {
		if status < 200 || status > 599 {
			status = 200
		}
		next.Store(&answer{body, events, status})
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := p.Call(ctx, Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
		if err != nil && !errors.As(err, new(*CallError)) {
			t.Fatalf("%T: %v", err, err)
		}
	})
}

func TestRequestTooLarge(t *testing.T) {
	t.Parallel()
	ctx, p, ep := dial(t, &agent{}, func(c *Config) { c.MaxRequestBytes = 100 })
	_, err := p.Call(ctx, ep, Request{Tool: "x", Arguments: map[string]any{"a": strings.Repeat("x", 200)}})
	var large *RequestTooLargeError
	if e, ok := errors.AsType[*CallError](err); !ok || e.Written || !errors.As(err, &large) || large.Limit != 100 || large.Size < 200 {
		t.Errorf("got %v", err)
	}
}
