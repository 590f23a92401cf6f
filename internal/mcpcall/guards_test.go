package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// The faults of agents that mcp-go did not survive, and for each fault the test which shows that Herald survives it.
//
//	307/308 to another host                        TestRedirectsAreNotFollowed, TestSecretHeaders
//	200 MiB JSON answer                            TestHugeAnswer
//	stdio line without end                         TestStdioMisbehaving/endless
//	stdio child stops reading                      TestStdioMisbehaving/deaf, TestCommandThatDoesNotRead
//	stdio launched through sh -c                   TestShellLeavesNoOrphan, TestStdioMisbehaving/forks
//	stdio child ignores EOF and SIGTERM            TestStdioMisbehaving/stubborn
//	stdio child dies during a call                 TestStdioDeathAndRestart; its zombie: TestCycles/stdio
//	stdio Start(ctx)                               TestCommandOutlivesItsFirstCall
//	stdio child reads its environment              TestStdioEnvironmentIsClean
//	never answers server/discover                  TestEras/legacy,_silent_on_discover, TestStdioMisbehaving/mute
//	exits on an unknown first message              TestStdioMisbehaving/strict
//	{} to any method                               TestEras/legacy,_answers_{}_to_everything, TestEmptyAnswers
//	initialize answered 400 … 429                  TestRefusedHandshakes
//	500/429 with JSON that is not JSON-RPC         TestMisbehavingAgents/500_with_empty_JSON, …/429_with_JSON…
//	404 with a JSON-RPC error, 2026-07-28          TestSessionIsNotLost
//	session unknown, answered 400                  TestSessionGone/400
//	answer with another request id                 TestMisbehavingAgents/another_request's_id
//	structuredContent without content              TestMisbehavingAgents/structured_without_content
//	unknown content block, resultType "task"       TestUnusualResults, TestReadAnswer
//	unknown resultType                             TestUnusualResults, TestReadAnswer
//	input required, empty request map              TestMisbehavingAgents/wants_input, TestDecline
//	asks (ping) without end                        TestPingFlood
//	SSE answer ends before the result              TestMisbehavingAgents/events_end_early
//	HTTP+SSE stream lost                           TestStreamLost, TestStreamsThatMisbehave
//	agent hangs on DELETE                          TestHangingSessionEnd
//	deadline on HTTP                               TestDeadline
//	500 clients opened                             TestCycles
//	endpoint event of another scheme               TestEndpointEvent, TestStreamsThatDoNotOpen/another_origin
//	x-mcp-header without a listing, -32020         TestHeaderMismatch

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, on := range []string{"initialize", "notifications/initialized", "tools/list", "tools/call"} {
			t.Run(fmt.Sprint(status, " ", on), func(t *testing.T) {
				t.Parallel()
				ctx, p, ep := dial(t, &agent{session: "s", on: answers{on: statuses(status, "", "Location", other.URL+"/mcp")}})
				ep.Headers = map[string]secret.Secret{"X-Api-Key": secret.New("very-secret-key")}
				_, err := p.Call(ctx, ep, Request{Tool: "x"})
				if on == "tools/list" {
					_, err = p.Tools(ctx, ep, true)
				}
				if e, ok := errors.AsType[*CallError](err); !ok || e.Status != status {
					t.Errorf("got %v", err)
				}
				heraldtest.Equal(t, "requests went elsewhere", elsewhere.Load(), 0)
			})
		}
	}
}

func TestHugeAnswer(t *testing.T) {
	t.Parallel()
	for kind, begin := range map[string]string{
		"application/json":  `{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"`,
		"text/event-stream": "data: ",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			taken := make(chan int64, 1)
			_, err := callOnce(t, &agent{on: answers{"tools/call": func(q *request) {
				q.status(200, begin, "Content-Type", kind)
				n, _ := io.Copy(q.w, io.LimitReader(endless('x'), 200<<20))
				taken <- n
			}}})
			if _, ok := errors.AsType[*TooLargeError](err); !ok {
				t.Errorf("got %v", err)
			}
			if n := <-taken; n > 32<<20 { // socket buffers, in addition to the one MiB that is read
				t.Errorf("%d bytes were taken", n)
			}
		})
	}
}

type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestCommandThatDoesNotRead(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ep := command("deaf")
	big := make(chan error, 1)
	openCommand(t, p, ep)
	begin := time.Now()
	large := Request{Tool: "x", Arguments: map[string]any{"a": strings.Repeat("x", 1<<20)}} // larger than the buffer of a pipe
	go func() {
		_, err := p.Call(heraldtest.Within(t, 2*time.Second), ep, large) // with a second process, if nothing of it was written to the first
		big <- err
	}()
	_, err := p.Call(heraldtest.Within(t, time.Second), ep, large)
	e, isE := errors.AsType[*CallError](err)
	if !isE {
		t.Errorf("the impatient call: %v", err)
	}
	if err := <-big; !errors.As(err, &e) {
		t.Errorf("the patient call: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestShellLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPool(t)
	ep := command("stubborn:" + dir)
	ep.Command, ep.Args, ep.Listed = "/bin/sh", []string{"-c", `"$0" <&0; true`, os.Args[0]}, true
	mustCall(t, p, ep, Request{Tool: "pid"})
	closePool(t, p)
	noneLeft(t, dir, 1)
}

func TestCommandOutlivesItsFirstCall(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ep := command("plain")
	var pids []string
	for range 3 {
		a := mustCall(t, p, ep, Request{Tool: "pid"})
		pids = append(pids, a.Text)
		_, _ = p.Call(heraldtest.Within(t, time.Nanosecond), ep, Request{Tool: "pid"}) // a call without time left does not end the process
	}
	heraldtest.Equal(t, "processes", pids, []string{pids[0], pids[0], pids[0]})
}

func TestEmptyAnswers(t *testing.T) {
	t.Parallel()
	for _, hint := range []string{"", modernVersion} {
		a := &agent{on: answers{"": results(`{}`)}}
		_, err := callHinted(t, a, hint)
		if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != StageOpen || a.seen("tools/call") != 0 {
			t.Errorf("hint %q: %v, %d calls", hint, err, a.seen("tools/call"))
		}
	}
}

// TestRefusedHandshakes checks the error, and after which refusals the handshake of the other era is tried.
func TestRefusedHandshakes(t *testing.T) {
	t.Parallel()
	otherEra := map[string][]int{"": {400}, modernVersion: {400, 404, 405, 410}}
	for _, status := range []int{400, 401, 403, 404, 405, 408, 410, 429, 500, 502, 503} {
		for hint, tried := range otherEra {
			t.Run(fmt.Sprint(status, hint), func(t *testing.T) {
				t.Parallel()
				a := &agent{on: answers{"": statuses(status, "not like this", "Retry-After", "11")}}
				_, err := callHinted(t, a, hint)
				want := CallError{Stage: StageOpen, Status: status, RetryAfter: 11 * time.Second}
				expectFailure(t, "the handshake", err, want, "not like this")
				if n := a.seen("GET"); n > 0 && status != 400 && status != 404 && status != 405 {
					t.Errorf("%d streams were asked for", n)
				}
				handshakes := 1
				if slices.Contains(tried, status) {
					handshakes = 2
				}
				heraldtest.Equal(t, "handshakes", a.seen("initialize")+a.seen("server/discover"), handshakes)
			})
		}
	}
}

func TestHangingSessionEnd(t *testing.T) {
	t.Parallel()
	leaving := make(chan struct{}, 4)
	_, p, ep := dial(t, &agent{session: "s", on: answers{http.MethodDelete: func(q *request) {
		leaving <- struct{}{}
		q.hang()
	}}})
	mustCall(t, p, ep, Request{Tool: "x"})
	p.Drop(ep)
	<-leaving
	begin := time.Now()
	mustCall(t, p, ep, Request{Tool: "x"})
	if took := time.Since(begin); took > transport.NoticeWait*9/10 {
		t.Errorf("a call waited %s for another client's end", took)
	}
	heraldtest.Must(t, p.Close(heraldtest.Within(t, 30*time.Second)))
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Close took %s", took)
	}
}

// TestAbandonedCall checks that an agent of the older era receives a cancellation when its call is given up. In that
// era, a lost connection does not cancel the call.
func TestAbandonedCall(t *testing.T) {
	t.Parallel()
	var ctx *deadline
	var asked string
	told := make(chan string, 4)
	on := answers{
		"tools/call": func(q *request) {
			asked = string(q.id)
			if q.stream != nil {
				q.w.WriteHeader(http.StatusAccepted)
			}
			ctx.pass()
			if q.stream == nil {
				q.hang()
			}
		},
		"notifications/cancelled": func(q *request) {
			var cancelled struct{ RequestID json.RawMessage }
			heraldtest.Must(t, json.Unmarshal(q.params, &cancelled))
			told <- string(cancelled.RequestID)
			q.pass()
		}}
	for name, h := range map[string]http.Handler{"http": &agent{session: "s", on: on}, "sse": &streamAgent{on: on}} {
		t.Run(name, func(t *testing.T) {
			ctx = newDeadline(t)
			_, p, ep := dial(t, h)
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			expectFailure(t, "the call", err, CallError{Stage: StageCall, Timeout: true, Written: true})
			heraldtest.Equal(t, "the request that was given up", heraldtest.Receive(t, "the agent is told", told), asked)
		})
	}
}
