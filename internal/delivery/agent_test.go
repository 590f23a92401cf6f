package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// agent is an MCP server (2025-11-25, JSON answers) whose behaviour a test can change.
type agent struct {
	*httptest.Server
	schema string // input schema of agent.receiveFeedback
	tool   string
	domain string // its /.well-known/agent-registration.json; empty: 404
	// on is called first. It returns true if it has answered the request.
	on func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool

	mu    sync.Mutex
	calls []call
}

// call is a received tools/call.
type call struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Meta      map[string]any  `json:"_meta"`
	header    http.Header
}

func (c call) args(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	heraldtest.Must(t, json.Unmarshal(c.Arguments, &m))
	return m
}

func newAgent(t testing.TB, adapt ...func(*agent)) *agent {
	t.Helper()
	a := &agent{schema: `{"type":"object"}`, tool: "agent.receiveFeedback"}
	for _, f := range adapt {
		f(a)
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Server.Close)
	return a
}

func (a *agent) received() []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]call(nil), a.calls...)
}

func reply(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func replyError(w http.ResponseWriter, id json.RawMessage, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, id, code, asJSON(message))
}

// paramsKey is the context key of the request's params, as JSON, for agent.on.
type paramsKey struct{}

// names serves the domain's registration file, which lists the agents of its endpoints.
func (a *agent) names(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.domain == "" {
		http.NotFound(w, r)
		return
	}
	fmt.Fprint(w, a.domain)
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/.well-known/agent-registration.json" {
		a.names(w, r)
		return
	}
	var req struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	req.Method = r.Method
	if r.Method == http.MethodPost {
		_ = json.NewDecoder(r.Body).Decode(&req)
	}
	a.mu.Lock()
	if req.Method == "tools/call" {
		c := call{header: r.Header.Clone()}
		_ = json.Unmarshal(req.Params, &c)
		a.calls = append(a.calls, c)
	}
	schema, tool := a.schema, a.tool
	a.mu.Unlock()
	r = r.WithContext(context.WithValue(r.Context(), paramsKey{}, string(req.Params)))
	if a.on != nil && a.on(req.Method, w, r, req.ID) {
		return
	}
	switch req.Method {
	case "initialize":
		reply(w, req.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"test agent","version":"1"}}`)
	case "tools/list":
		reply(w, req.ID, fmt.Sprintf(`{"tools":[{"name":%s,"inputSchema":%s}]}`, asJSON(tool), schema))
	case "tools/call":
		reply(w, req.ID, `{"content":[{"type":"text","text":"thank you"}]}`)
	case "ping":
		reply(w, req.ID, `{}`)
	case http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// onAny makes do answer the agent's requests. If do returns false, the agent answers as usual.
func onAny(do func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool) func(*agent) {
	return func(a *agent) { a.on = do }
}

// onCall makes do answer the agent's tools/call requests. n counts them from 1. If do returns false, the agent answers
// as usual.
func onCall(do func(n int, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool) func(*agent) {
	var n atomic.Int64
	return onAny(func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		return method == "tools/call" && do(int(n.Add(1)), w, r, id)
	})
}

// status answers each request with an HTTP status and headers, given as alternating names and values.
func status(code int, header ...string) func(*agent) {
	return onAny(func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		http.Error(w, "no", code)
		return true
	})
}

// answers answers each call with a result.
func answers(result string) func(*agent) {
	return onCall(func(_ int, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		reply(w, id, result)
		return true
	})
}

// saysNo is the result of a tool that declines.
const saysNo = `{"isError":true,"content":[{"type":"text","text":"no"}]}`

// breaksWhile answers each call with an HTTP status while broken returns true.
func breaksWhile(code int, broken func() bool) func(*agent) {
	return onCall(func(_ int, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		isBroken := broken()
		if isBroken {
			http.Error(w, "broken", code)
		}
		return isBroken
	})
}

// breaksWith answers each call with an HTTP status.
func breaksWith(code int) func(*agent) { return breaksWhile(code, func() bool { return true }) }

// hangs answers no call.
func hangs() func(*agent) {
	return onCall(func(_ int, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		<-r.Context().Done()
		return true
	})
}

// failsOnce answers the first call with HTTP 503.
func failsOnce() func(*agent) {
	var failed atomic.Bool
	return breaksWhile(http.StatusServiceUnavailable, func() bool { return !failed.Swap(true) })
}
