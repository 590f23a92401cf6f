package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
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
//	never answers server/discover                  TestEras/legacy,_silent_on_discover, TestCommandSilentOnDiscover
//	exits on an unknown first message              TestStdioMisbehaving/strict
//	{} to any method                               TestEras/legacy,_answers_{}_to_everything, TestEmptyAnswers
//	initialize answered 400 … 429                  TestRefusedHandshakes
//	500/429 with JSON that is not JSON-RPC         TestMisbehavingAgents/500_with_empty_JSON, …/429_with_JSON…
//	404 with a JSON-RPC error, 2026-07-28          TestModernNotFound
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
//	deadline on HTTP                               TestDeadline, TestDeadlineWhileReading
//	500 clients opened                             TestCycles
//	endpoint event of another scheme               TestEndpointEvent, TestStreamsThatDoNotOpen/another_origin
//	x-mcp-header without a listing, -32020         TestHeaderMismatch

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		reply(w, json.RawMessage("3"), `{"content":[{"type":"text","text":"mine now"}]}`)
	}))
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, on := range []string{"initialize", "notifications/initialized", "tools/call"} {
			t.Run(fmt.Sprint(status, " ", on), func(t *testing.T) {
				t.Parallel()
				a := &agent{session: "s", on: func(method string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
					if method == on {
						w.Header().Set("Location", other.URL+"/mcp")
						w.WriteHeader(status)
					}
					return method == on
				}}
				srv := serve(t, a)
				p := newPool(t)
				_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL,
					Headers: map[string]secret.Secret{"X-Api-Key": secret.New("very-secret-key")}}, Request{Tool: "x"})
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
			srv := serve(t, &agent{on: onMethod("tools/call", func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, begin)
				n, _ := io.Copy(w, io.LimitReader(endless('x'), 200<<20))
				taken <- n
			})})
			p := newPool(t)
			_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
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
	ep.Command, ep.Args, ep.Listed = "/bin/sh", []string{"-c", `"$0" & wait; true`, os.Args[0]}, true
	// A shell's background job has no stdin; give it the shell's.
	ep.Args[1] = `"$0" <&0; true`
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

func TestCommandSilentOnDiscover(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *Config) { c.ProbeTimeout = 200 * time.Millisecond })
	ep := command("mute")
	ep.ProtocolHint = modernVersion
	a := mustCall(t, p, ep, Request{Tool: "x"})
	heraldtest.Equal(t, "the protocol", a.Protocol, legacyVersion)
}

func TestEmptyAnswers(t *testing.T) {
	t.Parallel()
	for _, hint := range []string{"", modernVersion} {
		a := &agent{on: func(_ string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
			reply(w, id, `{}`)
			return true
		}}
		_, err := callHinted(t, a, hint)
		if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != StageOpen || a.seen("tools/call") != 0 {
			t.Errorf("hint %q: %v, %d calls", hint, err, a.seen("tools/call"))
		}
	}
}

func TestRefusedHandshakes(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 405, 408, 410, 429, 500, 502, 503} {
		for _, hint := range []string{"", modernVersion} {
			t.Run(fmt.Sprint(status, hint), func(t *testing.T) {
				t.Parallel()
				a := &agent{on: func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
					w.Header().Set("Retry-After", "11")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, "not like this")
					return true
				}}
				_, err := callHinted(t, a, hint)
				want := CallError{Stage: StageOpen, Status: status, RetryAfter: 11 * time.Second}
				expectFailure(t, "the handshake", err, want, "not like this")
				if n := a.seen("GET"); n > 0 && status != 400 && status != 404 && status != 405 {
					t.Errorf("%d streams were asked for", n)
				}
			})
		}
	}
}

// modern returns an agent of 2026-07-28. It calls on first for each request.
func modern(on func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool) *agent {
	return &agent{on: func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		switch {
		case on != nil && on(method, w, r, id):
		case method == "server/discover":
			reply(w, id, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`)
		case method == "tools/call":
			reply(w, id, `{"content":[{"type":"text","text":"ok"}],"resultType":"complete"}`)
		default:
			return false
		}
		return true
	}}
}

func TestModernNotFound(t *testing.T) {
	t.Parallel()
	a := modern(onMethod("tools/call", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no tools here"}}`, id)
	}))
	_, err := callHinted(t, a, modernVersion)
	if e, ok := errors.AsType[*CallError](err); !ok || e.Status != 404 || e.Code != -32601 || errors.Is(err, ErrSessionGone) || a.seen("tools/call") != 1 {
		t.Errorf("got %v after %d calls", err, a.seen("tools/call"))
	}
}

func TestUnusualResults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result     string
		unreadable bool
		refused    bool
	}{
		"unknown block":      {`{"content":[{"type":"hologram"}]}`, true, false},
		"a task":             {`{"resultType":"task","task":{"taskId":"1"}}`, true, false},
		"unknown resultType": {`{"content":[{"type":"text","text":"ok"}],"resultType":"maybe"}`, false, true},
		"no object":          {`"ok"`, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := modern(onMethod("tools/call", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
				reply(w, id, tt.result)
			}))
			a, err := callHinted(t, agent, modernVersion)
			var e *CallError
			switch {
			case agent.seen("tools/call") != 1:
				t.Errorf("called %d times", agent.seen("tools/call"))
			case tt.refused && (!errors.As(err, &e) || !e.Written):
				t.Errorf("got %+v, %v", a, err)
			case !tt.refused && (err != nil || a.Unreadable != tt.unreadable || string(a.Raw) != tt.result):
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
}

func TestHangingSessionEnd(t *testing.T) {
	t.Parallel()
	leaving := make(chan struct{}, 4)
	a := &agent{session: "s", on: onMethod(http.MethodDelete, func(_ http.ResponseWriter, r *http.Request, _ json.RawMessage) {
		leaving <- struct{}{}
		<-r.Context().Done()
	})}
	_, p, ep := dial(t, a)
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

func TestDeadlineWhileReading(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]func(w http.ResponseWriter, r *http.Request){
		"silent body": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"comments for ever": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				_, _ = io.WriteString(w, ": alive\n\n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := newDeadline(t)
			begin := make(chan time.Time, 1)
			srv := serve(t, &agent{on: onMethod("tools/call", func(w http.ResponseWriter, r *http.Request, _ json.RawMessage) {
				// By then the answer has usually begun. The checks below do not depend on it.
				late := time.AfterFunc(300*time.Millisecond, func() { begin <- time.Now(); ctx.pass() })
				defer late.Stop()
				body(w, r)
			})})
			p := newPool(t)
			_, err := p.Call(ctx, Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
			expectFailure(t, "the call", err, CallError{Stage: StageCall, Timeout: true, Written: true})
			if took := time.Since(heraldtest.Receive(t, "the deadline", begin)); took > 8*time.Second {
				t.Errorf("returned %s after its deadline", took)
			}
		})
	}
}

// TestAbandonedCall checks that an agent of the older era receives a cancellation when its call is given up. In that
// era, a lost connection does not cancel the call.
func TestAbandonedCall(t *testing.T) {
	t.Parallel()
	told := make(chan string, 4)
	type notice struct {
		Method string
		Params struct{ RequestID json.RawMessage }
	}
	var asked atomic.Value
	var ctx atomic.Pointer[deadline]
	watch := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				next.ServeHTTP(w, r)
				return
			}
			raw, _ := io.ReadAll(r.Body)
			var n notice
			_ = json.Unmarshal(raw, &n)
			if n.Method == "notifications/cancelled" {
				told <- string(n.Params.RequestID)
			}
			r.Body = io.NopCloser(strings.NewReader(string(raw)))
			next.ServeHTTP(w, r)
		})
	}
	hang := func(id json.RawMessage) {
		asked.Store(string(id))
		ctx.Load().pass()
	}
	for name, start := range map[string]func() Endpoint{
		"http": func() Endpoint {
			return Endpoint{Transport: TransportHTTP, URL: serve(t, watch(&agent{session: "s", on: onMethod("tools/call", func(_ http.ResponseWriter, r *http.Request, id json.RawMessage) {
				hang(id)
				<-r.Context().Done()
			})})).URL}
		},
		"sse": func() Endpoint {
			return streamOf(serve(t, watch(&streamAgent{post: onPost("tools/call", func(_ *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
				w.WriteHeader(http.StatusAccepted)
				hang(id)
			})})))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ep := start()
			p := newPool(t)
			ctx.Store(newDeadline(t))
			_, err := p.Call(ctx.Load(), ep, Request{Tool: "x"})
			expectFailure(t, "the call", err, CallError{Stage: StageCall, Timeout: true, Written: true})
			if id := heraldtest.Receive(t, "the agent is told", told); id != asked.Load() {
				t.Errorf("request %v was given up, and it was told of %s", asked.Load(), id)
			}
		})
	}
}
