package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/mcp"
)

// TestHeaderMismatch checks that arguments marked in the schema are mirrored into headers. If the agent's marks have
// changed, it refuses with HEADER_MISMATCH; then Herald lists and calls once more.
func TestHeaderMismatch(t *testing.T) {
	t.Parallel()
	var header atomic.Value
	header.Store("Region")
	var refusals atomic.Int32
	var always atomic.Bool
	a := modern(func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		switch method {
		case "tools/list":
			reply(w, id, fmt.Sprintf(`{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"%s"}}}},
				{"name":"odd","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"not a header\r\n"}}}},
				{"name":"unreadable","inputSchema":7,"annotations":7}],"resultType":"complete"}`, header.Load()))
			return true
		case "tools/call":
			if r.Header.Get("Mcp-Param-"+header.Load().(string)) == "eu" && !always.Load() {
				return false
			}
			refusals.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"header missing"}}`, id, mcp.HEADER_MISMATCH)
			return true
		}
		return false
	})
	ctx, p, ep := dial(t, a, func(c *Config) { c.RelistAfter = time.Hour })
	ep.ProtocolHint = modernVersion
	call := func(what string, listings, refused int32) {
		t.Helper()
		answer, err := p.Call(ctx, ep, Request{Tool: "x", Arguments: map[string]any{"region": "eu"}})
		if err != nil || answer.Text != "ok" || int32(a.seen("tools/list")) != listings || refusals.Load() != refused {
			t.Errorf("%s: %+v, %v, %d listings, %d refusals", what, answer, err, a.seen("tools/list"), refusals.Load())
		}
	}
	call("never listed", 1, 1)
	call("listed", 1, 1)
	header.Store("Place")
	call("marked anew", 2, 2)
	set, err := p.Tools(ctx, ep, false)
	if _, odd := Find(set.Tools, "odd", nil); err != nil || odd || len(set.Tools) != 2 {
		t.Errorf("a tool with an invalid mark is offered: %+v, %v", set, err)
	}
	always.Store(true)
	_, err = p.Call(ctx, ep, Request{Tool: "x", Arguments: map[string]any{"region": "eu"}})
	if e, ok := errors.AsType[*CallError](err); !ok || e.Code != mcp.HEADER_MISMATCH || refusals.Load() != 4 {
		t.Errorf("always refused: %v after %d refusals", err, refusals.Load())
	}
}

// TestSupportedAfterAll checks that an agent which first refuses the revision that it supports is tried once more with
// it, not with an older revision.
func TestSupportedAfterAll(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		supported string
		discovers int
		protocol  string
	}{
		"names it":      {`["2026-07-28"]`, 2, modernVersion},
		"names another": {`["2025-11-25"]`, 1, legacyVersion},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a *agent
			a = modern(func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
				if method != "server/discover" || a.seen(method) > 1 {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"which one","data":{"supported":%s}}}`, id, tt.supported)
				return true
			})
			answer, err := callHinted(t, a, modernVersion)
			if err != nil || answer.Protocol != tt.protocol || a.seen("server/discover") != tt.discovers {
				t.Errorf("got %+v, %v after %d", answer, err, a.seen("server/discover"))
			}
		})
	}
}

// TestDecline checks that an elicitation request is answered with one decline, which carries the tool's request state.
// Other requests for input are not answered.
func TestDecline(t *testing.T) {
	t.Parallel()
	confirm := `"q1":{"method":"elicitation/create","params":{"message":"sure?"}}`
	for name, tt := range map[string]struct {
		first  string
		second string // relevant params of the second call; "": no second call
		ends   string
		later  bool
	}{
		"a question with state": {first: `{"resultType":"input_required","inputRequests":{` + confirm + `},"requestState":"s\u00e9=1"}`,
			second: `{"inputResponses":{"q1":{"action":"decline"}},"requestState":"s\u00e9=1"}`, ends: "ok"},
		"a question":       {first: `{"resultType":"input_required","inputRequests":{` + confirm + `}}`, second: `{"inputResponses":{"q1":{"action":"decline"}}}`, ends: "ok"},
		"only state":       {first: `{"resultType":"input_required","requestState":"x"}`, second: `{"requestState":"x"}`, ends: "ok"},
		"patience":         {first: `{"resultType":"input_required","inputRequests":{}}`, later: true},
		"a model":          {first: `{"resultType":"input_required","inputRequests":{"m":{"method":"sampling/createMessage"}}}`},
		"both":             {first: `{"resultType":"input_required","inputRequests":{` + confirm + `,"m":{"method":"roots/list"}}}`},
		"endless question": {first: `{"resultType":"input_required","inputRequests":{` + confirm + `},"requestState":"again"}`, second: `{"inputResponses":{"q1":{"action":"decline"}},"requestState":"again"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var params []string
			a := modern(func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
				mu.Lock()
				n := len(params)
				mu.Unlock()
				if method == "tools/call" && (n == 1 || name == "endless question") {
					reply(w, id, tt.first)
					return true
				}
				return false
			})
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				var m struct {
					Method string
					Params map[string]json.RawMessage
				}
				if json.Unmarshal(raw, &m) == nil && m.Method == "tools/call" {
					for name := range m.Params {
						if name != "inputResponses" && name != "requestState" {
							delete(m.Params, name)
						}
					}
					mu.Lock()
					params = append(params, string(must(json.Marshal(m.Params))))
					mu.Unlock()
				}
				r.Body = io.NopCloser(strings.NewReader(string(raw)))
				a.ServeHTTP(w, r)
			}))
			p := newPool(t)
			answer, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL, ProtocolHint: modernVersion}, Request{Tool: "x"})
			want := []string{"{}"}
			if tt.second != "" {
				want = append(want, tt.second)
			}
			if got, wanted := strings.Join(params, "\n"), strings.Join(want, "\n"); got != wanted {
				t.Errorf("sent\n%s\nwant\n%s", got, wanted)
			}
			var input *InputRequiredError
			switch {
			case tt.ends != "" && (err != nil || answer.Text != tt.ends):
				t.Errorf("got %+v, %v", answer, err)
			case tt.ends == "" && (!errors.As(err, &input) || input.Later != tt.later):
				t.Errorf("got %+v, %v", answer, err)
			}
		})
	}
}

// TestProcessedCallIsNotRepeated: an agent asks for input during a call, and does not know the session of the reply. The
// agent has processed the call, so it is not made again with a new client.
func TestProcessedCallIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			a := modern(func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
				if method != "tools/call" {
					return false
				}
				switch calls.Add(1) {
				case 1:
					reply(w, id, `{"resultType":"input_required","inputRequests":{"q1":{"method":"elicitation/create","params":{"message":"sure?"}}},"requestState":"s"}`)
					return true
				case 2:
					writeStatus(w, status, "no such state")
					return true
				}
				return false
			})
			_, err := callHinted(t, a, modernVersion)
			if e, ok := errors.AsType[*CallError](err); !ok || !e.Written || calls.Load() != 2 {
				t.Errorf("%d calls: %+v", calls.Load(), err)
			}
		})
	}
}
