package mcpcall

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSessionIsNotLost checks that a failure with a status that may mean a lost session does not count as one, and how
// often the call is made: once if the tool may have run, twice if each new session refuses it.
func TestSessionIsNotLost(t *testing.T) {
	t.Parallel()
	type row struct {
		agent interface {
			http.Handler
			seen(method string) int
		}
		hint  string
		want  CallError
		says  string
		calls int
	}
	rows := map[string]row{
		"an agent that answers every call with 400": {agent: &agent{session: "s", on: answers{"tools/call": statuses(400, "too many arguments")}},
			want: CallError{Stage: StageCall, Status: 400, Written: true}, says: "too many arguments", calls: 2},
		"an agent that finds every call invalid": {agent: &agent{session: "s", on: answers{"tools/call": func(q *request) { q.refuse(200, -32600, "no") }}},
			want: CallError{Stage: StageCall, Code: -32600, Written: true}, calls: 2},
		"an agent that refuses the arguments": {agent: &agent{session: "s", on: answers{"tools/call": func(q *request) { q.refuse(200, -32602, "no") }}},
			want: CallError{Stage: StageCall, Code: -32602, Written: true}, calls: 1},
		"an invalid call without a session": {agent: &agent{on: answers{"tools/call": func(q *request) { q.refuse(200, -32600, "unknown session") }}},
			want: CallError{Stage: StageCall, Code: -32600, Written: true}, calls: 1},
		"404 with a JSON-RPC error": {agent: modern(answers{"tools/call": func(q *request) { q.refuse(404, -32601, "no tools here") }}), hint: modernVersion,
			want: CallError{Stage: StageCall, Status: 404, Code: -32601, Written: true}, calls: 1},
	}
	for _, status := range []int{400, 404, 405} {
		rows[fmt.Sprint("the answer's stream ends, and resuming it gives ", status)] = row{agent: &agent{session: "s", on: answers{
			"tools/call": func(q *request) {
				q.events("id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n")
			},
			http.MethodGet: statuses(status, "")}}, want: CallError{Stage: StageCall, Written: true}, calls: 1}
		if status != 405 {
			rows[fmt.Sprint("initialize on a new stream gives ", status)] = row{agent: &streamAgent{on: answers{"": statuses(status, "")}},
				want: CallError{Stage: StageOpen, Status: status}}
		}
	}
	for name, tt := range rows {
		_, err := callHinted(t, tt.agent, tt.hint)
		expectFailure(t, name, err, tt.want, tt.says)
		heraldtest.Equal(t, name+": a lost session", errors.Is(err, ErrSessionGone), false)
		heraldtest.Equal(t, name+": tools/call requests", tt.agent.seen("tools/call"), tt.calls)
		if strings.Contains(name, "resuming") {
			heraldtest.Equal(t, name+": resumed", tt.agent.seen(http.MethodGet), 1)
		}
	}
}

// TestUnauthorizedSession: some servers answer 401 to a session that they do not know, such as rmcp, and mcp-proxy with
// authentication. The call is made in a new session. If the agent also refuses that one, or a new session, the
// credentials are at fault.
func TestUnauthorizedSession(t *testing.T) {
	t.Parallel()
	refuse := statuses(401, "Unauthorized: Session not found", "WWW-Authenticate", `Bearer error="invalid_token"`)
	for name, tt := range map[string]struct {
		lost       int32 // sessions up to this one are unknown to the restarted agent
		initialize bool  // the restarted agent refuses new sessions
		want       CallError
		calls      int
	}{
		"new session":         {lost: 1, calls: 3},
		"call refused":        {lost: 100, want: CallError{Stage: StageCall, Status: 401, Written: true}, calls: 3},
		"new session refused": {lost: 100, initialize: true, want: CallError{Stage: StageOpen, Status: 401}, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, lost := forgetful(refuse)
			open := a.on["initialize"]
			a.on["initialize"] = func(q *request) {
				if tt.initialize && lost.Load() > 0 {
					refuse(q)
					return
				}
				open(q)
			}
			ctx, p, ep := dial(t, a)
			mustCall(t, p, ep, Request{Tool: "x"})
			lost.Store(tt.lost)
			answer, err := p.Call(ctx, ep, Request{Tool: "x"})
			heraldtest.Equal(t, "tools/call requests", a.seen("tools/call"), tt.calls)
			if tt.want.Status == 0 {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", answer.Text, "ok")
				return
			}
			expectFailure(t, "the call", err, tt.want)
			if e, _ := errors.AsType[*CallError](err); len(e.Challenge) != 1 || errors.Is(err, ErrSessionGone) {
				t.Errorf("got %#v", err)
			}
		})
	}
}

// TestForbiddenSession: some servers answer 410, 403 with a JSON-RPC error, or -32600 without an id, as Zilla does, to a
// session that they do not know. The call is made in a new session. If the agent also refuses that one, the call itself
// is at fault.
func TestForbiddenSession(t *testing.T) {
	t.Parallel()
	expired := func(q *request) { q.refuse(403, -32001, "Mcp-Session-Id principal mismatch") }
	for name, tt := range map[string]struct {
		refuse func(*request)
		want   CallError // of an agent that refuses each session
		calls  int       // to that agent
	}{
		"200": {statuses(200, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}`, "Content-Type", "application/json"),
			CallError{Code: -32600}, 2},
		"410":                   {statuses(410, ""), CallError{Status: 410}, 2},
		"403":                   {expired, CallError{Status: 403, Code: -32001}, 2},
		"403 about the request": {func(q *request) { q.refuse(403, -32001, "no") }, CallError{Status: 403, Code: -32001}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, lost := forgetful(tt.refuse)
			ctx, p, ep := dial(t, a)
			mustCall(t, p, ep, Request{Tool: "x"})
			lost.Store(1)
			if tt.calls > 1 {
				mustCall(t, p, ep, Request{Tool: "x"})
			}
			lost.Store(100)
			before := a.seen("tools/call")
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			tt.want.Stage, tt.want.Written = StageCall, true
			expectFailure(t, "the call", err, tt.want)
			heraldtest.Equal(t, "a lost session", errors.Is(err, ErrSessionGone), false)
			heraldtest.Equal(t, "tools/call requests", a.seen("tools/call")-before, tt.calls)
		})
	}
}

// TestSessionLostWithoutWord: an agent was restarted, and reports the unknown session in a way of its own. The next call
// is made in a new session. An agent that always fails gets one new session a minute.
func TestSessionLostWithoutWord(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*request){
		"500":            statuses(500, "TypeError: undefined"),
		"503":            statuses(503, "no such session"),
		"JSON-RPC error": func(q *request) { q.refuse(200, -32001, "Session not found") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, lost := forgetful(refuse)
			now := heraldtest.NewClock(time.Now())
			ctx, p, ep := dial(t, a, patient(now))
			call := func() error {
				_, err := p.Call(ctx, ep, Request{Tool: "x"})
				return err
			}
			heraldtest.Must(t, call())
			lost.Store(1)
			now.Advance(2 * time.Minute)
			if err := call(); err == nil || a.seen("tools/call") != 2 {
				t.Errorf("%v after %d calls", err, a.seen("tools/call"))
			}
			heraldtest.Must(t, call())
			lost.Store(100)
			now.Advance(2 * time.Minute)
			for range 5 {
				heraldtest.Fails(t, "an unknown session", call())
			}
			heraldtest.Equal(t, "sessions", a.seen("initialize"), 3)
		})
	}
}

// TestBridgeLostSession: a command passes the calls to a remote server, which was restarted, and answers with errors
// since. mcp-remote does that. The command is started anew, but not more than once a minute.
func TestBridgeLostSession(t *testing.T) {
	t.Parallel()
	now, dir := heraldtest.NewClock(time.Now()), t.TempDir()
	p, ep := newPool(t, patient(now)), command("bridge:"+dir)
	for round := 1; round <= 2; round++ {
		mustCall(t, p, ep, Request{Tool: "x"})
		for _, wait := range []time.Duration{0, 0, 2 * time.Minute} {
			now.Advance(wait)
			_, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "x"})
			expectFailure(t, "a lost session", err, CallError{Stage: StageCall, Code: -32001, Written: true})
			heraldtest.Equal(t, "processes", len(started(t, dir)), round)
		}
	}
}

// TestFurtherSession: some servers accept one session until they are restarted, and refuse those of further workers.
func TestFurtherSession(t *testing.T) {
	t.Parallel()
	for message, occupied := range map[string]bool{"Invalid Request: Server already initialized": true, "Server is already initialized": true,
		"Invalid Request: Session is closing": true, "no": false} {
		for _, status := range []int{200, 400} {
			_, err := callOnce(t, &agent{on: answers{"initialize": func(q *request) { q.refuse(status, -32600, message) }}})
			heraldtest.Equal(t, fmt.Sprint(status, message), errors.Is(err, ErrOccupied), occupied)
			heraldtest.Fails(t, message, err, message)
		}
	}
}

// TestAnsweredBeforeRefused checks that the answer on the stream counts, even if a gateway then answers the POST with
// an error.
func TestAnsweredBeforeRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 502, 504} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			returned := make(chan struct{})
			a := &streamAgent{on: answers{"tools/call": func(q *request) {
				q.stream.result(q.id, okResult)
				select { // it is to arrive first
				case <-returned:
				case <-time.After(3 * time.Second):
				}
				q.w.WriteHeader(status)
			}}}
			answer, err := callOnce(t, a)
			close(returned)
			if err != nil || answer.Text != "ok" || a.seen("tools/call") != 1 {
				t.Errorf("got %+v, %v after %d calls", answer, err, a.seen("tools/call"))
			}
		})
	}
}

// TestPostKeptOpen checks that the call returns as soon as the answer is on the stream, even if the agent keeps the
// POST open.
func TestPostKeptOpen(t *testing.T) {
	t.Parallel()
	returned, cut := make(chan struct{}), make(chan bool, 1)
	answer, err := callOnce(t, &streamAgent{on: answers{"tools/call": func(q *request) {
		q.w.WriteHeader(http.StatusAccepted)
		q.flush()
		q.stream.result(q.id, okResult)
		select {
		case <-returned:
			cut <- false
		case <-q.r.Context().Done():
			cut <- true
		}
	}}})
	close(returned)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the text", answer.Text, "ok")
	if <-cut {
		t.Error("the call returned only after the POST was cut off")
	}
}

// TestSlowOlderTransport checks that an agent of the older transport is detected even if it is slow to answer
// initialize, provided that it opens its stream fast.
func TestSlowOlderTransport(t *testing.T) {
	t.Parallel()
	_, p, ep := dial(t, &streamAgent{on: answers{"initialize": func(q *request) {
		<-time.After(2500 * time.Millisecond)
		q.pass()
	}}}, func(c *Config) { c.ProbeTimeout = 2 * time.Second })
	ep.Transport = TransportHTTP
	mustCall(t, p, ep, Request{Tool: "x"})
}

// TestBusyStream checks that the bytes an agent may send in addition to its answers grow with the number of calls.
func TestBusyStream(t *testing.T) {
	t.Parallel()
	note := "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":\"" + strings.Repeat("x", 30_000) + "\"}\n\n"
	a := &streamAgent{on: answers{"tools/call": func(q *request) {
		q.stream.say("%s", note)
		q.pass()
	}}}
	now := heraldtest.NewClock(time.Now())
	_, p, ep := dial(t, a, patient(now)) // the clock does not move: all calls are within one minute
	for range 100 {
		mustCall(t, p, ep, Request{Tool: "x"})
	}
	heraldtest.Equal(t, "streams", a.seen("GET"), 1)
}

// TestStreamSharesConnections checks that calls share connections, even if the agent answers a POST with a body of
// unknown length.
func TestStreamSharesConnections(t *testing.T) {
	t.Parallel()
	a := &streamAgent{on: answers{"tools/call": func(q *request) {
		q.w.WriteHeader(http.StatusAccepted)
		q.flush()
		_, _ = io.WriteString(q.w, "Accepted")
		q.stream.result(q.id, okResult)
	}}}
	var made atomic.Int64
	srv := httptest.NewUnstartedServer(a)
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	p := newPool(t)
	for range 20 {
		mustCall(t, p, streamOf(srv), Request{Tool: "x"})
	}
	if n := made.Load(); n > 10 { // a call may begin before the previous one has released its connection
		t.Errorf("%d connections for 20 calls", n)
	}
}

// TestSessionIsMasked checks that no error contains the session's id.
func TestSessionIsMasked(t *testing.T) {
	t.Parallel()
	const session = "0123456789abcdef-session"
	broken := answers{"tools/call": func(q *request) {
		q.status(500, "Session "+q.r.Header.Get("Mcp-Session-Id")+q.r.URL.Query().Get("sessionId")+" is broken")
	}}
	for name, h := range map[string]http.Handler{"web": &agent{session: session, on: broken},
		"stream": &streamAgent{endpoint: "/post?s=0&sessionId=" + session, on: broken}} {
		_, err := callOnce(t, h)
		heraldtest.Fails(t, name, err, "is broken")
		heraldtest.Lacks(t, name, fmt.Sprint(err), session)
	}
}

// TestFilledInSecretIsMasked checks that no error and no log contains a secret that the operator's file filled in, even
// if no client can be opened.
func TestFilledInSecretIsMasked(t *testing.T) {
	t.Parallel()
	const filled = "hunter2hunter2"
	var log heraldtest.Log
	p := newPool(t, func(c *Config) { c.Logger = log.Logger(slog.LevelDebug) })
	good := command("plain")
	good.Env = append(good.Env, "TOKEN="+filled)
	for name, ep := range map[string]Endpoint{
		"command":   {Transport: TransportStdio, Command: "/nowhere/" + filled + "/agent"},
		"name":      {Transport: TransportStdio, Command: filled},
		"folder":    {Transport: TransportStdio, Command: "/bin/true", Dir: "/nowhere/" + filled},
		"host":      {Transport: TransportHTTP, URL: "http://" + filled + ".localhost:1/mcp"},
		"blocked":   {Transport: TransportHTTP, URL: "http://u:p@" + filled + ".example/mcp"},
		"connected": good,
	} {
		ep.Listed, ep.Secrets = true, []secret.Secret{secret.New(filled)}
		_, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "pid"})
		if (err == nil) != (name == "connected") || err != nil && strings.Contains(err.Error(), filled) {
			t.Errorf("%s: %v", name, err)
		}
		// Short secrets are not masked. Errors therefore never quote a path.
		if e := (*transport.StartError)(nil); errors.As(err, &e) && strings.Contains(e.Error(), "nowhere") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if log := log.String(); strings.Contains(log, filled) || !strings.Contains(log, "endpoint") {
		t.Errorf("the log: %s", log)
	}
}
