package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestToolsPagesAndFreshness(t *testing.T) {
	t.Parallel()
	var pages, version atomic.Int32
	var endless atomic.Bool
	a := &agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		switch method {
		case "tools/list":
			n := pages.Add(1)
			if endless.Load() {
				reply(w, id, fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{}}],"nextCursor":"c%d"}`, n, n))
				return true
			}
			reply(w, id, fmt.Sprintf(`{"tools":[{"name":"v%d","inputSchema":{"type":"object","not":{}}}]}`, version.Load()))
			return true
		case "tools/call":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", id)
			return true
		}
		return false
	}}
	srv := httptest.NewServer(a)
	defer srv.Close()
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, func(c *Config) { c.RelistAfter, c.Clock = time.Second, now.Now })
	ep := Endpoint{Transport: TransportHTTP, URL: srv.URL}
	ctx := heraldtest.Within(t, 30*time.Second)
	expect := func(what string, fresh bool, name string, listings int32) {
		t.Helper()
		set, err := p.Tools(ctx, ep, fresh)
		if err != nil || len(set.Tools) != 1 || set.Tools[0].Name != name || pages.Load() != listings {
			t.Fatalf("%s: %+v, %v, %d listings", what, set, err, pages.Load())
		}
	}
	expect("first", false, "v0", 1)
	version.Store(1)
	expect("from memory", false, "v0", 1)
	expect("too soon", true, "v0", 1)
	now.Advance(2 * time.Second)
	expect("fresh", true, "v1", 2)
	version.Store(2)
	mustCall(t, p, ep, Request{Tool: "x"})
	expect("the agent said so", false, "v2", 3)
	now.Advance(time.Hour)
	expect("too old", false, "v2", 4)
	endless.Store(true)
	now.Advance(time.Hour)
	set, err := p.Tools(ctx, ep, false)
	if err != nil || !set.Cut || len(set.Tools) != maxListPages {
		t.Errorf("endless: %d tools, cut %v, %v", len(set.Tools), set.Cut, err)
	}
}

// TestLongCursor: a listing keeps the cursors of its pages, so it ends at a cursor that is too long.
func TestLongCursor(t *testing.T) {
	t.Parallel()
	for length, want := range map[int]int{maxCursor: maxListPages, maxCursor + 1: 1} {
		var pages atomic.Int32
		ctx, p, ep := dial(t, &agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
			if method != "tools/list" {
				return false
			}
			n := pages.Add(1)
			reply(w, id, fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{}}],"nextCursor":"%0*d"}`, n, length, n))
			return true
		}})
		set, err := p.Tools(ctx, ep, false)
		if err != nil || !set.Cut || len(set.Tools) != want || int(pages.Load()) != want {
			t.Errorf("cursors of %d bytes: %d tools of %d pages, cut %v, %v", length, len(set.Tools), pages.Load(), set.Cut, err)
		}
	}
}

func TestListRefused(t *testing.T) {
	t.Parallel()
	for name, tools := range map[string]string{"no list": `{"tools":"none"}`, "no object": `[1]`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, p, ep := dial(t, &agent{tools: tools})
			_, err := p.Tools(ctx, ep, false)
			var bad *BadAnswerError
			if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != StageList || !errors.As(err, &bad) {
				t.Errorf("got %#v", err)
			}
		})
	}
}
