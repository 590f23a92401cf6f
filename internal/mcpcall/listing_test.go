package mcpcall

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestToolsPagesAndFreshness(t *testing.T) {
	t.Parallel()
	for _, older := range []bool{false, true} {
		t.Run(fmt.Sprint("older transport ", older), func(t *testing.T) {
			t.Parallel()
			testListing(t, older)
		})
	}
}

func TestListRefused(t *testing.T) {
	t.Parallel()
	for name, tools := range map[string]string{"no list": `{"tools":"none"}`, "no object": `[1]`} {
		ctx, p, ep := dial(t, &agent{tools: tools})
		_, err := p.Tools(ctx, ep, false)
		expectFailure(t, name, err, CallError{Stage: StageList}, new(*BadAnswerError))
	}
}

// TestListWithAnotherID: a server may refuse a session that it forgot with an error that has an id of its own, as Anubis
// does. The list is requested once more, in a new session.
func TestListWithAnotherID(t *testing.T) {
	t.Parallel()
	a := &agent{tools: `{"tools":[]}`}
	a.on = answers{"tools/list": func(q *request) {
		if a.seen("tools/list") > 1 {
			q.pass()
			return
		}
		q.id = []byte(`"err_1"`)
		q.refuse(200, -32600, "Invalid Request")
	}}
	mustList(t, newPool(t), at(t, a))
	heraldtest.Equal(t, "sessions", a.seen("initialize"), 2)
}

func testListing(t *testing.T, older bool) {
	var pages, version atomic.Int32
	var endless atomic.Bool
	on := answers{
		"tools/list": func(q *request) {
			n := pages.Add(1)
			if endless.Load() {
				q.result(fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{}}],"nextCursor":"c%d"}`, n, n))
				return
			}
			q.result(fmt.Sprintf(`{"tools":[{"name":"v%d","inputSchema":{"type":"object","not":{}}}]}`, version.Load()))
		},
		"tools/call": func(q *request) {
			const changed = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
			if older {
				q.stream.say(changed)
				q.pass()
				return
			}
			q.events(changed+"data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", q.id)
		}}
	h := map[bool]http.Handler{false: &agent{on: on}, true: &streamAgent{on: on}}[older]
	now := heraldtest.NewClock(time.Now())
	ctx, p, ep := dial(t, h, func(c *Config) { c.RelistAfter, c.Clock = time.Second, now.Now })
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
		ctx, p, ep := dial(t, &agent{on: answers{"tools/list": func(q *request) {
			n := pages.Add(1)
			q.result(fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{}}],"nextCursor":"%0*d"}`, n, length, n))
		}}})
		set, err := p.Tools(ctx, ep, false)
		if err != nil || !set.Cut || len(set.Tools) != want || int(pages.Load()) != want {
			t.Errorf("cursors of %d bytes: %d tools of %d pages, cut %v, %v", length, len(set.Tools), pages.Load(), set.Cut, err)
		}
	}
}
