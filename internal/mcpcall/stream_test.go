package mcpcall

import (
	"encoding/json"
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

// TestResumeRefused checks that a call is not repeated if the stream of its answer ended before the result and cannot
// be resumed. The tool may have run.
func TestResumeRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 405} {
		a := &agent{session: "s", on: func(method string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			switch method {
			case "tools/call":
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n")
			case http.MethodGet:
				w.WriteHeader(status)
			default:
				return false
			}
			return true
		}}
		_, e := callOnce(t, a)
		if e == nil || !e.Written || e.Timeout || e.Stage != StageCall || errors.Is(e, ErrSessionGone) {
			t.Errorf("%d: %+v", status, e)
		}
		if n := a.seen("tools/call"); n != 1 || a.seen(http.MethodGet) != 1 {
			t.Errorf("%d: called %d times, resumed %d times", status, n, a.seen(http.MethodGet))
		}
	}
}

// TestAlwaysBadRequest checks that an agent which answers every call with 400 is not considered to have lost a new
// session.
func TestAlwaysBadRequest(t *testing.T) {
	t.Parallel()
	a := &agent{session: "s", on: onMethod("tools/call", func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
		http.Error(w, "too many arguments", http.StatusBadRequest)
	})}
	_, e := callOnce(t, a)
	if e == nil || e.Status != 400 || !e.Written || errors.Is(e, ErrSessionGone) || !strings.Contains(e.Error(), "too many arguments") || a.seen("tools/call") != 2 {
		t.Errorf("%+v after %d calls", e, a.seen("tools/call"))
	}
}

// TestUnauthorizedSession: some servers answer 401 to a session that they do not know, such as rmcp, and mcp-proxy with
// authentication. The call is made in a new session. If the agent also refuses that one, or a new session, the
// credentials are at fault.
func TestUnauthorizedSession(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		known      func(session int32) bool // sessions that the restarted agent knows
		initialize int                      // status of initialize after the restart; 0: a new session
		want       *CallError
		calls      int
	}{
		"new session":         {known: func(s int32) bool { return s == 2 }, calls: 3},
		"call refused":        {known: func(int32) bool { return false }, want: &CallError{Stage: StageCall, Status: 401, Written: true}, calls: 3},
		"new session refused": {known: func(int32) bool { return false }, initialize: 401, want: &CallError{Stage: StageOpen, Status: 401}, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var given atomic.Int32
			var restarted atomic.Bool
			a := &agent{on: func(method string, w http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
				var session int32
				_, _ = fmt.Sscan(r.Header.Get("Mcp-Session-Id"), &session)
				switch {
				case method == "initialize" && restarted.Load() && tt.initialize != 0, method == "tools/call" && restarted.Load() && !tt.known(session):
					writeStatus(w, 401, "Unauthorized: Session not found", "WWW-Authenticate", `Bearer error="invalid_token"`)
					return true
				case method == "initialize":
					w.Header().Set("Mcp-Session-Id", fmt.Sprint(given.Add(1)))
				}
				return false
			}}
			ctx, p, ep := dial(t, a)
			mustCall(t, p, ep, Request{Tool: "x"})
			restarted.Store(true)
			answer, err := p.Call(ctx, ep, Request{Tool: "x"})
			heraldtest.Equal(t, "tools/call requests", a.seen("tools/call"), tt.calls)
			if tt.want == nil {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", answer.Text, "ok")
				return
			}
			e, ok := errors.AsType[*CallError](err)
			if !ok || e.Stage != tt.want.Stage || e.Status != 401 || e.Written != tt.want.Written || len(e.Challenge) != 1 || errors.Is(err, ErrSessionGone) {
				t.Errorf("got %#v", err)
			}
		})
	}
}

// TestSessionLostWithoutWord: an agent was restarted, and reports the unknown session in a way of its own. The next call
// is made in a new session. An agent that always fails gets one new session a minute.
func TestSessionLostWithoutWord(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(w http.ResponseWriter, id json.RawMessage){
		"500": func(w http.ResponseWriter, _ json.RawMessage) { writeStatus(w, 500, "TypeError: undefined") },
		"503": func(w http.ResponseWriter, _ json.RawMessage) { writeStatus(w, 503, "no such session") },
		"JSON-RPC error": func(w http.ResponseWriter, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Session not found"}}`, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var given, lost atomic.Int32 // sessions up to lost are unknown
			a := &agent{on: func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
				var session int32
				_, _ = fmt.Sscan(r.Header.Get("Mcp-Session-Id"), &session)
				switch {
				case method == "initialize":
					w.Header().Set("Mcp-Session-Id", fmt.Sprint(given.Add(1)))
				case method == "tools/call" && session <= lost.Load():
					refuse(w, id)
					return true
				}
				return false
			}}
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
				if call() == nil {
					t.Error("no error")
				}
			}
			heraldtest.Equal(t, "sessions", given.Load(), 3)
		})
	}
}

// TestStreamRefusesInitialize checks that an agent that refuses initialize on a new stream is not considered to have
// lost the session.
func TestStreamRefusesInitialize(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404} {
		a := &streamAgent{post: func(_ string, _ *openStream, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			w.WriteHeader(status)
			return true
		}}
		p := newPool(t)
		_, err := p.Call(heraldtest.Within(t, 30*time.Second), streamOf(serve(t, a)), Request{Tool: "x"})
		if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != StageOpen || e.Status != status || errors.Is(err, ErrSessionGone) {
			t.Errorf("%d: %v", status, err)
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
			a := &streamAgent{post: onPost("tools/call", func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
				s.result(id, `{"content":[{"type":"text","text":"ok"}]}`)
				select { // it is to arrive first
				case <-returned:
				case <-time.After(3 * time.Second):
				}
				w.WriteHeader(status)
			})}
			p := newPool(t)
			answer, err := p.Call(heraldtest.Within(t, 30*time.Second), streamOf(serve(t, a)), Request{Tool: "x"})
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
	a := &streamAgent{post: func(method string, s *openStream, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		if method != "tools/call" {
			return false
		}
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		s.result(id, `{"content":[{"type":"text","text":"ok"}]}`)
		select {
		case <-returned:
			cut <- false
		case <-r.Context().Done():
			cut <- true
		}
		return true
	}}
	answer, err := newPool(t).Call(heraldtest.Within(t, 30*time.Second), streamOf(serve(t, a)), Request{Tool: "x"})
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
	a := &streamAgent{post: func(method string, _ *openStream, _ http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		if method == "initialize" {
			<-time.After(2500 * time.Millisecond)
		}
		return false
	}}
	ep := streamOf(serve(t, a))
	ep.Transport = TransportHTTP
	p := newPool(t, func(c *Config) { c.ProbeTimeout = 2 * time.Second })
	mustCall(t, p, ep, Request{Tool: "x"})
}

// TestBusyStream checks that the bytes an agent may send in addition to its answers grow with the number of calls.
func TestBusyStream(t *testing.T) {
	t.Parallel()
	note := "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":\"" + strings.Repeat("x", 30_000) + "\"}\n\n"
	a := &streamAgent{post: onPost("tools/call", func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.WriteHeader(http.StatusAccepted)
		s.say("%s", note)
		s.result(id, `{"content":[{"type":"text","text":"ok"}]}`)
	})}
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, patient(now)) // the clock does not move: all calls are within one minute
	ep := streamOf(serve(t, a))
	for range 100 {
		mustCall(t, p, ep, Request{Tool: "x"})
	}
	heraldtest.Equal(t, "streams", a.seen("GET"), 1)
}

// TestStreamSharesConnections checks that calls share connections, even if the agent answers a POST with a body of
// unknown length.
func TestStreamSharesConnections(t *testing.T) {
	t.Parallel()
	a := &streamAgent{post: onPost("tools/call", func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "Accepted")
		s.result(id, `{"content":[{"type":"text","text":"ok"}]}`)
	})}
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
	web := &agent{session: session, on: onMethod("tools/call", func(w http.ResponseWriter, r *http.Request, _ json.RawMessage) {
		http.Error(w, "Session "+r.Header.Get("Mcp-Session-Id")+" is broken", 500)
	})}
	stream := &streamAgent{endpoint: "/post?s=0&sessionId=" + session, post: onPost("tools/call", func(_ *openStream, w http.ResponseWriter, r *http.Request, _ json.RawMessage) {
		http.Error(w, "Session "+r.URL.Query().Get("sessionId")+" is broken", 500)
	})}
	p := newPool(t)
	for _, ep := range []Endpoint{{Transport: TransportHTTP, URL: serve(t, web).URL}, streamOf(serve(t, stream))} {
		_, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "x"})
		if err == nil || strings.Contains(err.Error(), session) || !strings.Contains(err.Error(), "is broken") {
			t.Errorf("%s: %v", ep.Transport, err)
		}
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
