package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	a := modern(answers{
		"tools/list": func(q *request) {
			q.result(fmt.Sprintf(`{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"%s"}}}},
				{"name":"odd","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"not a header\r\n"}}}},
				{"name":"unreadable","inputSchema":7,"annotations":7}],"resultType":"complete"}`, header.Load()))
		},
		"tools/call": func(q *request) {
			if q.r.Header.Get("Mcp-Param-"+header.Load().(string)) == "eu" && !always.Load() {
				q.pass()
				return
			}
			refusals.Add(1)
			q.refuse(http.StatusBadRequest, mcp.HEADER_MISMATCH, "header missing")
		}})
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
			a = modern(answers{"server/discover": func(q *request) {
				if a.seen(q.method) > 1 {
					q.pass()
					return
				}
				q.respond(http.StatusBadRequest, `"error":{"code":-32022,"message":"which one","data":{"supported":`+tt.supported+`}}`)
			}})
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
			params := make(chan string, 4) // of the calls
			calls := 0
			answer, err := callHinted(t, modern(answers{"tools/call": func(q *request) {
				members := map[string]json.RawMessage{}
				_ = json.Unmarshal(q.params, &members)
				for name := range members {
					if name != "inputResponses" && name != "requestState" {
						delete(members, name)
					}
				}
				params <- string(must(json.Marshal(members)))
				if calls++; calls == 1 || name == "endless question" {
					q.result(tt.first)
					return
				}
				q.pass()
			}}), modernVersion)
			heraldtest.Equal(t, "the first call", <-params, "{}")
			if tt.second != "" {
				heraldtest.Equal(t, "the second call", heraldtest.Receive(t, "a second call", params), tt.second)
			}
			heraldtest.Equal(t, "more calls", len(params), 0)
			if tt.ends != "" {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", answer.Text, tt.ends)
				return
			}
			if input, ok := errors.AsType[*InputRequiredError](err); !ok || input.Later != tt.later {
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
			var a *agent
			a = modern(answers{"tools/call": func(q *request) {
				switch a.seen(q.method) {
				case 1:
					q.result(`{"resultType":"input_required","inputRequests":{"q1":{"method":"elicitation/create","params":{"message":"sure?"}}},"requestState":"s"}`)
				case 2:
					q.status(status, "no such state")
				default:
					q.pass()
				}
			}})
			_, err := callHinted(t, a, modernVersion)
			if e, ok := errors.AsType[*CallError](err); !ok || !e.Written || a.seen("tools/call") != 2 {
				t.Errorf("%d calls: %+v", a.seen("tools/call"), err)
			}
		})
	}
}
