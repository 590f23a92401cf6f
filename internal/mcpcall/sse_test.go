package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// serve runs h until the end of the test. Then it closes open streams, because nothing else ends them.
func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// streamAgent is a minimal HTTP+SSE server that can misbehave.
type streamAgent struct {
	endpoint string // data of the endpoint event; default /post?s=N
	// get is called first for each new stream and returns true if it answered.
	get func(w http.ResponseWriter, r *http.Request) bool
	// post is called first for each message and returns true if it answered the POST.
	post func(method string, s *openStream, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool

	mu      sync.Mutex
	streams []*openStream
	count   map[string]int
}

// onPost makes do answer the POSTs of one method instead of the agent.
func onPost(name string, do func(s *openStream, w http.ResponseWriter, r *http.Request, id json.RawMessage)) func(string,
	*openStream, http.ResponseWriter, *http.Request, json.RawMessage) bool {
	return func(method string, s *openStream, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		if method == name {
			do(s, w, r, id)
		}
		return method == name
	}
}

// openStream is the stream of one GET.
type openStream struct {
	out  chan string
	end  chan struct{}
	once sync.Once
}

func (s *openStream) close() { s.once.Do(func() { close(s.end) }) }

// say writes to the stream.
func (s *openStream) say(format string, args ...any) {
	select {
	case s.out <- fmt.Sprintf(format, args...):
	case <-s.end:
	}
}

func (s *openStream) result(id json.RawMessage, result string) {
	s.say("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, result)
}

func (a *streamAgent) seen(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count[what]
}

func (a *streamAgent) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count == nil {
		a.count = map[string]int{}
	}
	a.count[what]++
}

// endAll ends every stream, as an agent does when it restarts.
func (a *streamAgent) endAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		s.close()
	}
}

func (a *streamAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		a.note("GET")
		if a.get == nil || !a.get(w, r) {
			a.stream(w, r)
		}
		return
	}
	var req struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.NewDecoder(r.Body).Decode(&req)
	a.note(req.Method)
	var n int
	_, _ = fmt.Sscan(r.URL.Query().Get("s"), &n)
	a.mu.Lock()
	var s *openStream
	if n >= 0 && n < len(a.streams) {
		s = a.streams[n]
	}
	a.mu.Unlock()
	if s == nil || isClosed(s.end) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if a.post != nil && a.post(req.Method, s, w, r, req.ID) {
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, "Accepted")
	switch req.Method {
	case "initialize":
		s.result(req.ID, `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"by-hand","version":"0"}}`)
	case "tools/list":
		s.result(req.ID, `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`)
	case "tools/call":
		s.result(req.ID, `{"content":[{"type":"text","text":"ok"}]}`)
	case "ping":
		s.result(req.ID, `{}`)
	}
}

func (a *streamAgent) stream(w http.ResponseWriter, r *http.Request) {
	s := &openStream{out: make(chan string, 16), end: make(chan struct{})}
	a.mu.Lock()
	n := len(a.streams)
	a.streams = append(a.streams, s)
	a.mu.Unlock()
	defer s.close()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	target := a.endpoint
	if target == "" {
		target = fmt.Sprintf("/post?s=%d", n)
	}
	fmt.Fprintf(w, ": welcome\n\nevent: endpoint\ndata: %s\n\n", target)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case text := <-s.out:
			_, _ = io.WriteString(w, text)
		case <-s.end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func streamOf(srv *httptest.Server) Endpoint {
	return Endpoint{Transport: TransportSSE, URL: srv.URL + "/sse"}
}

func TestRealServerOverSSE(t *testing.T) {
	t.Parallel()
	srv, p := serve(t, server.NewSSEServer(realTools())), newPool(t)
	// Registered with its own transport, and registered as http.
	for _, kind := range []string{TransportSSE, TransportHTTP} {
		t.Run(kind, func(t *testing.T) {
			ep := streamOf(srv)
			ep.Transport = kind
			ctx := heraldtest.Within(t, 30*time.Second)
			set := mustList(t, p, ep)
			tool, ok := Find(set.Tools, feedbackTool, nil)
			if !ok || !strings.Contains(string(tool.InputSchema), "anyOf") || set.Server.Name != "test-agent" {
				t.Fatalf("got %+v", set)
			}
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					want := fmt.Sprintf(`{"arguments":{"value":"%d"},"meta":null}`, i)
					a, err := p.Call(ctx, ep, Request{Tool: feedbackTool, Arguments: map[string]any{"value": fmt.Sprint(i)}, Meta: map[string]any{"x": 1}})
					if err != nil || a.Text != want || a.Protocol == "" {
						t.Errorf("got %+v, %v; want %s", a, err, want)
					}
				})
			}
			wg.Wait()
			_, err := p.Call(ctx, ep, Request{Tool: "unknown"})
			expectFailure(t, "unknown tool", err, CallError{Stage: StageCall, Code: mcp.INVALID_PARAMS, Written: true})
		})
	}
}

func TestStreamsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	status := func(code int, header ...string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			writeStatus(w, code, "said no", header...)
			return true
		}
	}
	begins := func(text string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, text)
			return true
		}
	}
	for name, tt := range map[string]struct {
		agent *streamAgent
		want  CallError
		as    any
	}{
		"401":                 {agent: &streamAgent{get: status(401)}, want: CallError{Status: 401}},
		"404":                 {agent: &streamAgent{get: status(404)}, want: CallError{Status: 404}},
		"429":                 {agent: &streamAgent{get: status(429, "Retry-After", "7")}, want: CallError{Status: 429, RetryAfter: 7 * time.Second}},
		"503":                 {agent: &streamAgent{get: status(503, "Retry-After", "9")}, want: CallError{Status: 503, RetryAfter: 9 * time.Second}},
		"307":                 {agent: &streamAgent{get: status(307, "Location", other.URL)}, want: CallError{Status: 307}},
		"301":                 {agent: &streamAgent{get: status(301, "Location", other.URL)}, want: CallError{Status: 301}},
		"no stream":           {agent: &streamAgent{get: status(200, "Content-Type", "text/html")}, as: new(*BadAnswerError)},
		"another origin":      {agent: &streamAgent{endpoint: other.URL + "/post"}, as: new(*BadAnswerError)},
		"ends at once":        {agent: &streamAgent{get: begins("")}, as: new(*BadAnswerError)},
		"ends in the event":   {agent: &streamAgent{get: begins("event: endpoint\ndata: /post")}, as: new(*BadAnswerError)},
		"endless first event": {agent: &streamAgent{get: begins("event: endpoint\ndata: /" + strings.Repeat("x", 3<<20))}, as: new(*TooLargeError)},
		"endless comments":    {agent: &streamAgent{get: begins(strings.Repeat(": "+strings.Repeat("x", 100)+"\n\n", 40_000))}, as: new(*BadAnswerError)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, p, ep := dial(t, tt.agent)
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			tt.want.Stage = StageOpen
			expectFailure(t, "the call", err, tt.want)
			if tt.as != nil && !errors.As(err, tt.as) {
				t.Errorf("%#v", err)
			}
			heraldtest.Equal(t, "requests to the other host", elsewhere.Load(), 0)
		})
	}
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		ctx, p, ep := dial(t, &streamAgent{get: func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		}}, func(c *Config) { c.OpenTimeout = 200 * time.Millisecond })
		_, err := p.Call(ctx, ep, Request{Tool: "x"})
		expectFailure(t, "the call", err, CallError{Stage: StageOpen, Timeout: true})
	})
}

func TestStreamsThatMisbehave(t *testing.T) {
	t.Parallel()
	onCall := func(f func(s *openStream, w http.ResponseWriter, r *http.Request, id json.RawMessage)) *streamAgent {
		return &streamAgent{post: onPost("tools/call", f)}
	}
	says := func(text string) *streamAgent { // ID stands for the call's id
		return onCall(func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			w.WriteHeader(202)
			s.say("%s", strings.ReplaceAll(text, "ID", string(id)))
		})
	}
	status := func(code int, header ...string) *streamAgent {
		return onCall(func(_ *openStream, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			writeStatus(w, code, "", header...)
		})
	}
	answer := `{"content":[{"type":"text","text":"ok"}]}`
	for name, tt := range map[string]struct {
		agent *streamAgent
		good  bool
		want  CallError
		as    any
		calls int // 0 means 1
	}{
		"the stream ends in a call": {want: CallError{Written: true}, agent: onCall(func(s *openStream, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			w.WriteHeader(202)
			s.close()
		})},
		"the stream ends before the POST is answered": {want: CallError{Written: true}, agent: onCall(func(s *openStream, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) {
			s.close()
			<-r.Context().Done()
		})},
		"the POST is never answered, the call is": {good: true, agent: onCall(func(s *openStream, _ http.ResponseWriter, r *http.Request, id json.RawMessage) {
			s.result(id, answer)
			<-r.Context().Done()
		})},
		"asks under our number": {good: true, agent: onCall(func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			w.WriteHeader(202)
			s.say("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"ping\"}\n\n", id)
			s.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"other\",\"result\":{}}\n\ndata: not JSON\n\ndata: [1]\n\n")
			s.result(id, answer)
		})},
		"another event moves the endpoint": {good: true,
			agent: says("event: endpoint\ndata: http://127.0.0.1:1/elsewhere\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":" + answer + "}\n\n")},
		"endless event":       {want: CallError{Written: true}, as: new(*TooLargeError), agent: says("data: " + strings.Repeat("x", 3<<20))},
		"event of many lines": {want: CallError{Written: true}, as: new(*TooLargeError), agent: says(strings.Repeat("data: x\n", 1<<18))},
		"notifications without end": {want: CallError{Written: true}, as: new(*BadAnswerError), agent: onCall(func(s *openStream, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
			w.WriteHeader(202)
			for range 6 << 10 {
				s.say("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":\"%s\"}\n\n", strings.Repeat("x", 1000))
			}
		})},
		"429":                      {want: CallError{Status: 429, RetryAfter: 3 * time.Second, Written: true}, agent: status(429, "Retry-After", "3")},
		"500":                      {want: CallError{Status: 500, Written: true}, agent: status(500)},
		"redirect":                 {want: CallError{Status: 308, Written: true}, agent: status(308, "Location", "http://127.0.0.1:1/")},
		"no such session, ever":    {want: CallError{}, calls: 2, agent: status(404)},
		"neither result nor error": {want: CallError{Written: true}, as: new(*BadAnswerError), agent: says("data: {\"jsonrpc\":\"2.0\",\"id\":ID}\n\n")},
		"JSON-RPC error": {want: CallError{Code: -32050, Written: true},
			agent: says("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{\"code\":-32050,\"message\":\"own\"}}\n\n")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, p, ep := dial(t, tt.agent)
			begin := time.Now()
			a, err := p.Call(ctx, ep, Request{Tool: "x"})
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			heraldtest.Equal(t, "tools/call requests", tt.agent.seen("tools/call"), max(tt.calls, 1))
			if tt.good {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", a.Text, "ok")
				return
			}
			t.Log(err)
			tt.want.Stage = StageCall
			expectFailure(t, "the call", err, tt.want)
			if tt.as != nil && !errors.As(err, tt.as) {
				t.Errorf("%#v", err)
			}
		})
	}
}

// TestPingFlood checks that an agent which sends requests without end receives ten answers per second, because each
// costs an HTTP request. The agent's own answer to the call is still read.
func TestPingFlood(t *testing.T) {
	t.Parallel()
	now := heraldtest.NewClock(time.Unix(1e9, 0))
	a := &streamAgent{post: onPost("tools/call", func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.WriteHeader(http.StatusAccepted)
		for i := range 100 {
			asked := []string{"ping", "roots/list"}[i%2]
			s.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"own-%d\",\"method\":\"%s\"}\n\n", i, asked)
		}
		s.result(id, `{"content":[{"type":"text","text":"ok"}]}`)
	})}
	p := newPool(t, func(c *Config) { c.Clock = now.Now })
	srv := serve(t, a)
	ctx := heraldtest.Within(t, 30*time.Second)
	for second := 1; second <= 2; second++ {
		if answer, err := p.Call(ctx, streamOf(srv), Request{Tool: "x"}); err != nil || answer.Text != "ok" {
			t.Fatalf("second %d: %+v, %v", second, answer, err)
		}
		// The result arrived after all requests, so only answers already in transit are still sent.
		heraldtest.Await(t, "ten answers", func() bool { return a.seen("") >= 10*second })
		now.Advance(time.Second)
	}
	heraldtest.Must(t, p.Close(ctx))
	heraldtest.Equal(t, "answers to 200 requests in two seconds", a.seen(""), 20)
}

// TestStreamLost checks that all 16 calls on a lost stream fail at once, and that the next call opens a new stream.
func TestStreamLost(t *testing.T) {
	t.Parallel()
	inCall := make(chan struct{}, 16)
	var hang atomic.Bool
	a := &streamAgent{post: func(method string, _ *openStream, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		if method != "tools/call" || !hang.Load() {
			return false
		}
		w.WriteHeader(http.StatusAccepted)
		inCall <- struct{}{}
		return true
	}}
	ctx, p, ep := dial(t, a)
	mustCall(t, p, ep, Request{Tool: "x"})
	hang.Store(true)
	done := make(chan error, 16)
	for range 16 {
		go func() {
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			done <- err
		}()
	}
	for range 16 {
		<-inCall
	}
	hang.Store(false)
	begin := time.Now()
	a.endAll()
	for range 16 {
		var e *CallError
		if err := <-done; !errors.As(err, &e) || !e.Written || e.Timeout {
			t.Errorf("lost in a call: %v", err)
		}
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("noticed after %s", took)
	}
	mustCall(t, p, ep, Request{Tool: "x"})
	// If the stream is lost between calls, the next caller does not notice, even if the worker has not noticed the loss
	// yet.
	a.endAll()
	mustCall(t, p, ep, Request{Tool: "x"})
	heraldtest.Equal(t, "streams", a.seen("GET"), 3)
}

func TestStreamSaysThatToolsChanged(t *testing.T) {
	t.Parallel()
	a := &streamAgent{post: func(method string, s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		if method == "tools/call" {
			w.WriteHeader(http.StatusAccepted)
			s.say("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			s.result(id, `{"content":[]}`)
		}
		return method == "tools/call"
	}}
	ctx, p, ep := dial(t, a)
	for want := 1; want <= 2; want++ {
		if _, err := p.Tools(ctx, ep, false); err != nil || a.seen("tools/list") != want {
			t.Fatalf("%v, %d listings, want %d", err, a.seen("tools/list"), want)
		}
		mustCall(t, p, ep, Request{Tool: "x"})
	}
}

// TestManyValuesInPostURL: each value in the address of requests is masked like a session id, which costs a search of
// every answer. An agent cannot make one answer occupy the processor for seconds by naming hundreds of values.
func TestManyValuesInPostURL(t *testing.T) {
	t.Parallel()
	for values, want := range map[int]string{8: "", 9: "names an address with more than 8 parameters"} {
		p := newPool(t)
		address := "/post?s=0" + strings.Repeat("&a=0123456789abcdef", values-1)
		_, err := p.Call(heraldtest.Within(t, 30*time.Second), streamOf(serve(t, &streamAgent{endpoint: address})), Request{Tool: "x"})
		if text := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(text, want) {
			t.Errorf("%d values: %v", values, err)
		}
	}
}
