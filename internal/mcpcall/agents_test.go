package mcpcall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
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

// at returns the endpoint of an agent that is served until the end of the test.
func at(t testing.TB, h http.Handler) Endpoint {
	t.Helper()
	srv := serve(t, h)
	if _, older := h.(*streamAgent); older {
		return streamOf(srv)
	}
	return Endpoint{Transport: TransportHTTP, URL: srv.URL}
}

func streamOf(srv *httptest.Server) Endpoint {
	return Endpoint{Transport: TransportSSE, URL: srv.URL + "/sse"}
}

// request is a request to an agent of the tests.
type request struct {
	w      http.ResponseWriter
	r      *http.Request
	method string // of JSON-RPC; if the request is no POST, of HTTP
	id     json.RawMessage
	params json.RawMessage
	stream *openStream // of an agent with the older transport
	pass   func()      // gives the agent's usual answer
}

// okResult is the result of a call that returns the text "ok".
const okResult = `{"content":[{"type":"text","text":"ok"}]}`

// result answers with the result of the request.
func (q *request) result(result string) { q.respond(http.StatusOK, `"result":`+result) }

// refuse answers with a JSON-RPC error.
func (q *request) refuse(status, code int, message string) {
	q.respond(status, fmt.Sprintf(`"error":{"code":%d,"message":%q}`, code, message))
}

// respond answers with the id of the request and one more member.
func (q *request) respond(status int, member string) {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, q.id, member)
	if q.stream == nil {
		q.status(status, message, "Content-Type", "application/json")
		return
	}
	q.status(http.StatusAccepted, "Accepted")
	q.stream.say("event: message\ndata: %s\n\n", message)
}

// status answers with an HTTP status, a body and headers, given as alternating names and values.
func (q *request) status(code int, body string, header ...string) {
	for i := 0; i+1 < len(header); i += 2 {
		q.w.Header().Set(header[i], header[i+1])
	}
	q.w.WriteHeader(code)
	_, _ = io.WriteString(q.w, body)
}

// events answers with a stream of events.
func (q *request) events(format string, args ...any) {
	q.w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(q.w, format, args...)
}

// flush sends the bytes that are written.
func (q *request) flush() { _ = http.NewResponseController(q.w).Flush() }

// hang does not answer.
func (q *request) hang() { <-q.r.Context().Done() }

// answers has the unusual answers of an agent, by method. That of "" is for all methods without one. They are called
// from several goroutines.
type answers map[string]func(q *request)

// results answers with a result.
func results(result string) func(*request) { return func(q *request) { q.result(result) } }

// statuses answers with an HTTP status.
func statuses(code int, body string, header ...string) func(*request) {
	return func(q *request) { q.status(code, body, header...) }
}

func (m answers) serve(q *request) {
	do, ok := m[q.method]
	if !ok {
		do, ok = m[""]
	}
	if !ok {
		do = func(q *request) { q.pass() }
	}
	do(q)
}

// counts counts requests by method.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) seen(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[method]
}

func (c *counts) note(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[method]++
}

// read reads a request and counts it.
func (c *counts) read(w http.ResponseWriter, r *http.Request) *request {
	var message struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	if r.Method == http.MethodPost {
		_ = json.NewDecoder(r.Body).Decode(&message)
	} else {
		message.Method = r.Method
	}
	c.note(message.Method)
	return &request{w: w, r: r, method: message.Method, id: message.ID, params: message.Params}
}

// agent is a minimal MCP server that can misbehave. It speaks 2025-11-25 over JSON, or 2026-07-28.
type agent struct {
	counts
	session string // returned by initialize if not empty
	tools   string // the result of tools/list
	modern  bool   // supports 2026-07-28 too
	on      answers
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := a.read(w, r)
	q.pass = func() { a.answer(q) }
	a.on.serve(q)
}

func (a *agent) answer(q *request) {
	switch q.method {
	case "initialize":
		if a.session != "" {
			q.w.Header().Set("Mcp-Session-Id", a.session)
		}
		q.result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"by-hand","version":"0"}}`)
	case "tools/list":
		q.result(a.tools)
	case "tools/call":
		if a.modern {
			q.result(`{"content":[{"type":"text","text":"ok"}],"resultType":"complete"}`)
			return
		}
		q.result(okResult)
	case "server/discover":
		if a.modern {
			q.result(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`)
			return
		}
		q.refuse(http.StatusOK, -32601, "no")
	default:
		q.w.WriteHeader(http.StatusAccepted)
	}
}

// modern returns an agent of 2026-07-28.
func modern(on answers) *agent { return &agent{modern: true, on: on} }

// streamAgent is a minimal HTTP+SSE server that can misbehave.
type streamAgent struct {
	counts
	endpoint string // data of the endpoint event; default /post?s=N
	on       answers
	streams  []*openStream
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

// result writes the result of a request to the stream, without answering its POST.
func (s *openStream) result(id json.RawMessage, result string) {
	s.say("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, result)
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
	q := a.read(w, r)
	if r.Method == http.MethodGet {
		if q.pass = func() { a.stream(w, r) }; a.on[http.MethodGet] == nil {
			q.pass()
			return
		}
		a.on.serve(q)
		return
	}
	var n int
	_, _ = fmt.Sscan(r.URL.Query().Get("s"), &n)
	a.mu.Lock()
	if n >= 0 && n < len(a.streams) {
		q.stream = a.streams[n]
	}
	a.mu.Unlock()
	if q.stream == nil || isClosed(q.stream.end) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	q.pass = func() { a.answer(q) }
	a.on.serve(q)
}

func (a *streamAgent) answer(q *request) {
	switch q.method {
	case "initialize":
		q.result(`{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"by-hand","version":"0"}}`)
	case "tools/list":
		q.result(`{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`)
	case "tools/call":
		q.result(okResult)
	case "ping":
		q.result(`{}`)
	default:
		q.status(http.StatusAccepted, "Accepted")
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

// forgetful returns an agent that numbers its sessions from 1, and refuses the calls of sessions up to lost.
func forgetful(refuse func(*request)) (a *agent, lost *atomic.Int32) {
	var given atomic.Int32
	lost = &atomic.Int32{}
	return &agent{on: answers{
		"initialize": func(q *request) {
			q.w.Header().Set("Mcp-Session-Id", fmt.Sprint(given.Add(1)))
			q.pass()
		},
		"tools/call": func(q *request) {
			var session int32
			_, _ = fmt.Sscan(q.r.Header.Get("Mcp-Session-Id"), &session)
			if session <= lost.Load() {
				refuse(q)
				return
			}
			q.pass()
		}}}, lost
}

// reading passes the body of each request to read, and gives next the body that read returns.
func reading(next http.Handler, read func(r *http.Request, body []byte) []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		body = read(r, body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// blocking returns an answer that reports each request and answers when release is closed.
func blocking() (answer func(*request), asked <-chan struct{}, release chan struct{}) {
	requests, release := make(chan struct{}, 8), make(chan struct{})
	return func(q *request) {
		requests <- struct{}{}
		<-release
		q.pass()
	}, requests, release
}
