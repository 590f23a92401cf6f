package mcpcall

import (
	"compress/gzip"
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

// realTools returns a server made with mcp-go. Its first tool returns its arguments.
func realTools(options ...server.ServerOption) *server.MCPServer {
	s := server.NewMCPServer("test-agent", "1.2.3", append(options, server.WithToolCapabilities(true))...)
	s.AddTool(mcp.NewToolWithRawSchema(feedbackTool, "", json.RawMessage(`{"type":"object","anyOf":[{"required":["value"]}],"properties":{"value":{"type":"string"}},"x-kept":true}`)),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultJSON(map[string]any{"arguments": r.Params.Arguments, "meta": r.Params.Meta.AdditionalFields["io.agentherald/delivery"]})
		})
	s.AddTool(mcp.NewToolWithRawSchema("fails", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultError("not today"), nil
	})
	return s
}

// callOnce serves an agent and calls a tool of it.
func callOnce(t testing.TB, h http.Handler, adapt ...func(*Config)) (Answer, error) {
	t.Helper()
	ctx, p, ep := dial(t, h, adapt...)
	return p.Call(ctx, ep, Request{Tool: "x"})
}

// TestQuotedIDs calls agents behind a gateway that turns the numeric ids of requests into strings. The official clients
// for TypeScript and Python accept such answers too.
func TestQuotedIDs(t *testing.T) {
	t.Parallel()
	numeric := regexp.MustCompile(`"id":([0-9]+)`)
	for name, h := range map[string]http.Handler{TransportHTTP: &agent{}, TransportSSE: &streamAgent{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := serve(t, reading(h, func(_ *http.Request, body []byte) []byte { return numeric.ReplaceAll(body, []byte(`"id":"$1"`)) }))
			a := mustCall(t, newPool(t), Endpoint{Transport: name, URL: srv.URL}, Request{Tool: feedbackTool})
			heraldtest.Equal(t, "the text", a.Text, "ok")
		})
	}
}

// TestIDsOfClientsDiffer checks that two clients of an agent, such as those of two workers, send different ids. Some
// servers find the request of an answer by its id alone, and would exchange the answers of the clients.
func TestIDsOfClientsDiffer(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.Handler{TransportHTTP: &agent{}, TransportSSE: &streamAgent{}, "modern": modern(nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			seen := map[string]int{}
			srv := serve(t, reading(h, func(_ *http.Request, body []byte) []byte {
				var message struct{ ID json.RawMessage }
				if json.Unmarshal(body, &message) == nil && message.ID != nil {
					mu.Lock()
					defer mu.Unlock()
					seen[string(message.ID)]++
				}
				return body
			}))
			ep := Endpoint{Transport: name, URL: srv.URL}
			if name == "modern" {
				ep.Transport, ep.ProtocolHint = TransportHTTP, modernVersion
			}
			for range 2 {
				mustCall(t, newPool(t), ep, Request{Tool: feedbackTool})
			}
			mu.Lock()
			defer mu.Unlock()
			heraldtest.Equal(t, fmt.Sprint("ids in ", seen), len(seen), 4)
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
			a, err := callOnce(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				plain := httptest.NewRecorder()
				(&agent{}).ServeHTTP(plain, r)
				if plain.Code == http.StatusOK {
					w.Header().Set("Content-Type", tt.kind)
					fmt.Fprintf(w, tt.answer, plain.Body)
				} else {
					w.WriteHeader(plain.Code)
				}
			}))
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the text", a.Text, "ok")
		})
	}
}

// TestCompressedAnswers calls agents that compress their answers although no request asks for that. Clients that use
// fetch notice nothing. The compressed and the decompressed bytes are bounded.
func TestCompressedAnswers(t *testing.T) {
	t.Parallel()
	compress := func(s string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, err := io.WriteString(z, s)
		heraldtest.Must(t, errors.Join(err, z.Close()))
		return b.String()
	}
	for name, tt := range map[string]struct {
		kind, answer string // %s: a response
		pack         func(string) string
		fails        any
	}{
		"JSON":                 {"application/json", "%s", compress, nil},
		"events":               {"text/event-stream", "data: %s\n\n", compress, nil},
		"plain after all":      {"application/json", "%s", func(s string) string { return s }, nil},
		"cut":                  {"application/json", "%s", func(s string) string { return compress(s)[:20] }, "in the middle of its answer"},
		"a bomb":               {"application/json", strings.Repeat(" ", 2<<20) + "%s", compress, new(*TooLargeError)},
		"a bomb of events":     {"text/event-stream", strings.Repeat(": \n\n", 1<<20) + "data: %s\n\n", compress, new(*TooLargeError)},
		"nothing, without end": {"application/json", "%s", func(s string) string { return strings.Repeat(compress(""), 1<<16) + compress(s) }, "in the middle of its answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := callOnce(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				plain := httptest.NewRecorder()
				(&agent{}).ServeHTTP(plain, r)
				if plain.Code != http.StatusOK {
					w.WriteHeader(plain.Code)
					return
				}
				w.Header().Set("Content-Type", tt.kind)
				w.Header().Set("Content-Encoding", "GZIP")
				_, _ = io.WriteString(w, tt.pack(fmt.Sprintf(tt.answer, plain.Body)))
			}))
			if tt.fails != nil {
				expectFailure(t, "the handshake", err, CallError{Stage: StageOpen}, tt.fails)
				return
			}
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the text", a.Text, "ok")
		})
	}
}

func TestMisbehavingAgents(t *testing.T) {
	t.Parallel()
	hijack := func(f func(c net.Conn)) func(*request) {
		return func(q *request) {
			c, _, err := q.w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			f(c)
			_ = c.Close()
		}
	}
	json200 := func(body string) func(*request) { return statuses(200, body, "Content-Type", "application/json") }
	for _, tt := range []struct {
		name   string
		answer func(*request) // to tools/call
		text   string         // of a successful answer
		want   CallError      // Stage and Written are always the same
		cause  any
	}{
		{name: "events", text: "streamed", answer: func(q *request) {
			q.events(": hello\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\ndata: \"result\":{\"content\":[{\"type\":\"text\",\"text\":\"streamed\"}]}}\n\n", q.id)
		}},
		{name: "structured without content", text: `{"a":1}`, answer: results(`{"structuredContent":{"a":1}}`)},
		{name: "503 with Retry-After", answer: statuses(503, "busy", "Retry-After", "15"), want: CallError{Status: 503, RetryAfter: 15 * time.Second}},
		{name: "429 with JSON", answer: statuses(429, `{"error":{"message":"slow down"}}`, "Retry-After", "3", "Content-Type", "application/json"), want: CallError{Status: 429, RetryAfter: 3 * time.Second}},
		{name: "429 with JSON of another kind", answer: statuses(429, `{"detail":"slow"}`, "Retry-After", "3"), want: CallError{Status: 429, RetryAfter: 3 * time.Second}},
		{name: "500 with empty JSON", answer: statuses(500, `{}`, "Content-Type", "application/json"), want: CallError{Status: 500}},
		{name: "500 with a result", answer: statuses(500, `{"jsonrpc":"2.0","id":3,"result":{"content":[]}}`), want: CallError{Status: 500}},
		{name: "502 without body", answer: statuses(502, ``), want: CallError{Status: 502}},
		{name: "400 with code", answer: statuses(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}`), want: CallError{Status: 400, Code: -32602}},
		{name: "401", answer: statuses(401, ``, "WWW-Authenticate", `Bearer resource_metadata="http://127.0.0.1:1/x"`), want: CallError{Status: 401}},
		{name: "404 without session", answer: statuses(404, ``), want: CallError{Status: 404}},
		{name: "JSON-RPC error", answer: func(q *request) { q.respond(200, `"error":{"code":-32099,"message":"own\u0000code"}`) }, want: CallError{Code: -32099}},
		{name: "JSON-RPC error of a request that was not parsed", answer: json200(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`), want: CallError{Code: -32700}},
		{name: "JSON-RPC error without id, in a batch", answer: json200(`[{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}]`), want: CallError{Code: -32600}},
		{name: "result without id", answer: json200(`{"jsonrpc":"2.0","id":null,"result":{"content":[]}}`)},
		{name: "HTML", answer: statuses(200, `<html>`, "Content-Type", "text/html"), cause: new(*BadAnswerError)},
		{name: "not JSON", answer: json200(`{"jsonrpc":`)},
		{name: "no result", answer: func(q *request) {
			q.status(200, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s}`, q.id), "Content-Type", "application/json")
		}, cause: new(*BadAnswerError)},
		{name: "another request's id", answer: json200(`{"jsonrpc":"2.0","id":"other","result":{"content":[]}}`), cause: new(*BadAnswerError)},
		{name: "event of many lines", answer: func(q *request) { q.events("%s\n", strings.Repeat("data: x\n", 10000)) }, cause: new(*TooLargeError)},
		{name: "events end early", answer: func(q *request) { q.events(": bye\n\n") }},
		{name: "reset after reading", answer: hijack(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })},
		{name: "half an answer", answer: hijack(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"jsonrpc\"")
		})},
		{name: "wants input", answer: results(`{"resultType":"input_required","inputRequests":{}}`), cause: new(*InputRequiredError)},
		{name: "202 without answer", answer: statuses(202, ``)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agent := &agent{on: answers{"tools/call": tt.answer}}
			a, err := callOnce(t, agent)
			heraldtest.Equal(t, "tools/call requests", agent.seen("tools/call"), 1)
			if tt.text != "" {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", a.Text, tt.text)
				return
			}
			t.Log(err)
			tt.want.Stage, tt.want.Written = StageCall, true
			expectFailure(t, "the call", err, tt.want, tt.cause)
		})
	}
}

// TestDeadline checks that a call ends with its deadline, if the agent is silent before or during its answer. A
// handshake has a shorter deadline.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method string
		do     func(*request)
		want   CallError
	}{
		"call":        {"tools/call", (*request).hang, CallError{Stage: StageCall, Written: true, Timeout: true}},
		"initialize":  {"initialize", (*request).hang, CallError{Stage: StageOpen, Timeout: true}},
		"silent body": {"tools/call", func(q *request) { q.status(200, "", "Content-Type", "application/json"); q.flush(); q.hang() }, CallError{Stage: StageCall, Written: true, Timeout: true}},
		"comments for ever": {"tools/call", func(q *request) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				q.events(": alive\n\n")
				q.flush()
				select {
				case <-tick.C:
				case <-q.r.Context().Done():
					return
				}
			}
		}, CallError{Stage: StageCall, Written: true, Timeout: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := newDeadline(t)
			begin := make(chan time.Time, 1)
			_, p, ep := dial(t, &agent{on: answers{tt.method: func(q *request) {
				if tt.method == "initialize" { // it does not wait for the call's deadline
					begin <- time.Now()
				} else { // when it passes, the answer has usually begun; the checks below do not depend on it
					late := time.AfterFunc(300*time.Millisecond, func() { begin <- time.Now(); ctx.pass() })
					defer late.Stop()
				}
				tt.do(q)
			}}}, func(c *Config) {
				if tt.method == "initialize" {
					c.OpenTimeout = 300 * time.Millisecond
				}
			})
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			expectFailure(t, "the call", err, tt.want, context.DeadlineExceeded)
			if took := time.Since(heraldtest.Receive(t, "the deadline", begin)); took > 8*time.Second {
				t.Errorf("returned %s after its deadline", took)
			}
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
	if !errors.As(err, new(*netguard.BlockedError)) && !errors.As(err, new(*netguard.RefusedURLError)) || !errors.As(err, new(*CallError)) {
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
	for name, refuse := range map[string]func(*request){
		"404":                                  statuses(404, ""),
		"400":                                  statuses(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`),
		"400, invalid params, as of mcp-go":    statuses(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"Invalid session ID"}}`),
		"200, invalid params, as of WordPress": func(q *request) { q.refuse(200, -32602, "Invalid params: Invalid or expired session") },
		"200, invalid request, as of Anubis": func(q *request) {
			q.respond(200, `"error":{"code":-32600,"message":"Invalid Request","data":{"message":"Server not initialized"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, lost := forgetful(refuse)
			ctx, p, ep := dial(t, a)
			for want := range 3 {
				lost.Store(int32(want)) // in the first round (0) no session is forgotten
				answer, err := p.Call(ctx, ep, Request{Tool: "x"})
				if err != nil || answer.Text != "ok" {
					t.Fatalf("after %d: %v", want, err)
				}
			}
			heraldtest.Equal(t, "initialize requests", a.seen("initialize"), 3)

			// A server that does not know any session gets exactly one retry.
			a, lost = forgetful(refuse)
			lost.Store(100)
			_, err := callOnce(t, a)
			if e, ok := errors.AsType[*CallError](err); !ok || !errors.Is(e, ErrSessionGone) || e.Written || e.Code != 0 || a.seen("tools/call") != 2 {
				t.Errorf("%v after %d calls", err, a.seen("tools/call"))
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
	var next atomic.Pointer[func(*request)]
	_, p, ep := dial(f, &agent{on: answers{
		"tools/call":   func(q *request) { (*next.Load())(q) },
		http.MethodGet: func(*request) {},
	}})
	f.Fuzz(func(t *testing.T, body []byte, events bool, status int) {
		if status < 200 || status > 599 {
			status = 200
		}
		kind := "application/json"
		if events {
			kind = "text/event-stream"
		}
		answer := statuses(status, string(body), "Content-Type", kind)
		next.Store(&answer)
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := p.Call(ctx, ep, Request{Tool: "x"})
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

// TestRealServers calls agents made with mcp-go, over both transports of the web and from many callers at once. An
// agent of the older transport may be registered as http.
func TestRealServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		transport, hint, protocol string
		older                     bool
	}{
		"legacy":                    {TransportHTTP, "", legacyVersion, false},
		"modern":                    {TransportHTTP, "2026-07-28", modernVersion, false},
		"future":                    {TransportHTTP, "2027-01-01", modernVersion, false},
		"older":                     {TransportSSE, "", legacyVersion, true},
		"older, registered as http": {TransportHTTP, "", legacyVersion, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan mcp.Implementation, 1)
			hooks := &server.Hooks{}
			hooks.AddAfterInitialize(func(_ context.Context, _ any, r *mcp.InitializeRequest, _ *mcp.InitializeResult) {
				told <- r.Params.ClientInfo
			})
			tools := realTools(server.WithHooks(hooks))
			var h http.Handler = server.NewStreamableHTTPServer(tools)
			if tt.older {
				h = server.NewSSEServer(tools)
			}
			ctx, p, ep := dial(t, h)
			ep.URL, ep.Transport, ep.ProtocolHint = ep.URL+"/sse", tt.transport, tt.hint
			set := mustList(t, p, ep)
			if tt.hint == "" { // the client's version has the form of `worker --version`
				if info := heraldtest.Receive(t, "the client's version", told); info.Name != "herald" || !strings.HasPrefix(buildinfo.Version(), info.Version+" (") {
					t.Errorf("%+v of %s", info, buildinfo.Version())
				}
			}
			if set.Server != (ServerInfo{"test-agent", "1.2.3"}) || set.Protocol != tt.protocol || set.Cut {
				t.Errorf("got %+v", set)
			}
			tool, ok := Find(set.Tools, feedbackTool, nil)
			if !ok || !strings.Contains(string(tool.InputSchema), `"x-kept"`) || !strings.Contains(string(tool.InputSchema), "anyOf") {
				t.Fatalf("schema not as sent: %s", tool.InputSchema)
			}
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					args, err := Fit(tool, map[string]any{"value": fmt.Sprint(i)})
					if err != nil {
						t.Error(err)
					}
					a, err := p.Call(ctx, ep, Request{Tool: tool.Name, Arguments: args, Meta: map[string]any{"io.agentherald/delivery": map[string]any{"attempt": i}}})
					if want := fmt.Sprintf(`{"arguments":{"value":"%d"},"meta":{"attempt":%d}}`, i, i); err != nil || a.Protocol != tt.protocol || a.IsError || a.Unreadable || a.Text != want {
						t.Errorf("got %+v, %v; want %s", a, err, want)
					}
				})
			}
			wg.Wait()
			if a := mustCall(t, p, ep, Request{Tool: "fails"}); !a.IsError || a.Text != "not today" {
				t.Errorf("isError: %+v", a)
			}
			_, err := p.Call(ctx, ep, Request{Tool: "unknown"})
			if e, ok := errors.AsType[*CallError](err); !ok || e.Code != mcp.INVALID_PARAMS || e.Stage != StageCall || !e.Written {
				t.Errorf("unknown tool: %#v", err)
			}
		})
	}
}
