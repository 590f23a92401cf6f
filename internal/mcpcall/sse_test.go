package mcpcall

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestStreamsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	begins := func(text string) func(*request) { return func(q *request) { q.events("%s", text) } }
	for name, tt := range map[string]struct {
		get      func(*request)
		endpoint string
		want     CallError
		cause    any
	}{
		"401":                 {get: statuses(401, "said no"), want: CallError{Status: 401}},
		"404":                 {get: statuses(404, "said no"), want: CallError{Status: 404}},
		"429":                 {get: statuses(429, "said no", "Retry-After", "7"), want: CallError{Status: 429, RetryAfter: 7 * time.Second}},
		"503":                 {get: statuses(503, "said no", "Retry-After", "9"), want: CallError{Status: 503, RetryAfter: 9 * time.Second}},
		"307":                 {get: statuses(307, "", "Location", other.URL), want: CallError{Status: 307}},
		"301":                 {get: statuses(301, "", "Location", other.URL), want: CallError{Status: 301}},
		"no stream":           {get: statuses(200, "said no", "Content-Type", "text/html"), cause: new(*BadAnswerError)},
		"another origin":      {endpoint: other.URL + "/post", cause: new(*BadAnswerError)},
		"ends at once":        {get: begins(""), cause: new(*BadAnswerError)},
		"ends in the event":   {get: begins("event: endpoint\ndata: /post"), cause: new(*BadAnswerError)},
		"endless first event": {get: begins("event: endpoint\ndata: /" + strings.Repeat("x", 3<<20)), cause: new(*TooLargeError)},
		"endless comments":    {get: begins(strings.Repeat(": "+strings.Repeat("x", 100)+"\n\n", 40_000)), cause: new(*BadAnswerError)},
		"silent":              {get: func(q *request) { q.events(""); q.flush(); q.hang() }, want: CallError{Timeout: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &streamAgent{endpoint: tt.endpoint}
			if tt.get != nil {
				a.on = answers{http.MethodGet: tt.get}
			}
			_, err := callOnce(t, a, func(c *Config) {
				if tt.want.Timeout {
					c.OpenTimeout = 200 * time.Millisecond
				}
			})
			tt.want.Stage = StageOpen
			expectFailure(t, "the call", err, tt.want, tt.cause)
			heraldtest.Equal(t, "requests to the other host", elsewhere.Load(), 0)
		})
	}
}

func TestStreamsThatMisbehave(t *testing.T) {
	t.Parallel()
	says := func(text string) func(*request) { // ID stands for the call's id
		return func(q *request) {
			q.w.WriteHeader(202)
			q.stream.say("%s", strings.ReplaceAll(text, "ID", string(q.id)))
		}
	}
	unknown := CallError{Written: true}
	for name, tt := range map[string]struct {
		call  func(*request)
		good  bool
		want  CallError
		cause any
		calls int // 0 means 1
	}{
		"the stream ends in a call": {want: unknown, call: func(q *request) {
			q.w.WriteHeader(202)
			q.stream.close()
		}},
		"the stream ends before the POST is answered": {want: unknown, call: func(q *request) {
			q.stream.close()
			q.hang()
		}},
		"the POST is never answered, the call is": {good: true, call: func(q *request) {
			q.stream.result(q.id, okResult)
			q.hang()
		}},
		"asks under our number": {good: true, call: says("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"method\":\"ping\"}\n\n" +
			"data: {\"jsonrpc\":\"2.0\",\"id\":\"other\",\"result\":{}}\n\ndata: not JSON\n\ndata: [1]\n\n" +
			"data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":" + okResult + "}\n\n")},
		"another event moves the endpoint": {good: true,
			call: says("event: endpoint\ndata: http://127.0.0.1:1/elsewhere\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":" + okResult + "}\n\n")},
		"endless event":       {want: unknown, cause: new(*TooLargeError), call: says("data: " + strings.Repeat("x", 3<<20))},
		"event of many lines": {want: unknown, cause: new(*TooLargeError), call: says(strings.Repeat("data: x\n", 1<<18))},
		"notifications without end": {want: unknown, cause: new(*BadAnswerError), call: func(q *request) {
			q.w.WriteHeader(202)
			for range 6 << 10 {
				q.stream.say("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":\"%s\"}\n\n", strings.Repeat("x", 1000))
			}
		}},
		"429":                      {want: CallError{Status: 429, RetryAfter: 3 * time.Second, Written: true}, call: statuses(429, "", "Retry-After", "3")},
		"500":                      {want: CallError{Status: 500, Written: true}, call: statuses(500, "")},
		"redirect":                 {want: CallError{Status: 308, Written: true}, call: statuses(308, "", "Location", "http://127.0.0.1:1/")},
		"no such session, ever":    {calls: 2, call: statuses(404, "")},
		"neither result nor error": {want: unknown, cause: new(*BadAnswerError), call: says("data: {\"jsonrpc\":\"2.0\",\"id\":ID}\n\n")},
		"JSON-RPC error":           {want: CallError{Code: -32050, Written: true}, call: func(q *request) { q.refuse(200, -32050, "own") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := &streamAgent{on: answers{"tools/call": tt.call}}
			begin := time.Now()
			a, err := callOnce(t, agent)
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			heraldtest.Equal(t, "tools/call requests", agent.seen("tools/call"), max(tt.calls, 1))
			if tt.good {
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", a.Text, "ok")
				return
			}
			t.Log(err)
			tt.want.Stage = StageCall
			expectFailure(t, "the call", err, tt.want, tt.cause)
		})
	}
}

// TestPingFlood checks that an agent which sends requests without end receives ten answers per second, because each
// costs an HTTP request. The agent's own answer to the call is still read.
func TestPingFlood(t *testing.T) {
	t.Parallel()
	now := heraldtest.NewClock(time.Unix(1e9, 0))
	a := &streamAgent{on: answers{"tools/call": func(q *request) {
		for i := range 100 {
			asked := []string{"ping", "roots/list"}[i%2]
			q.stream.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"own-%d\",\"method\":\"%s\"}\n\n", i, asked)
		}
		q.pass()
	}}}
	ctx, p, ep := dial(t, a, func(c *Config) { c.Clock = now.Now })
	for second := 1; second <= 2; second++ {
		if answer, err := p.Call(ctx, ep, Request{Tool: "x"}); err != nil || answer.Text != "ok" {
			t.Fatalf("second %d: %+v, %v", second, answer, err)
		}
		// The result arrived after all requests, so only answers already in transit are still sent.
		heraldtest.Await(t, "ten answers", func() bool { return a.seen("") >= 10*second })
		now.Advance(time.Second)
	}
	heraldtest.Must(t, p.Close(ctx))
	heraldtest.Equal(t, "answers to 200 requests in two seconds", a.seen(""), 20)
}

// TestStreamLost checks that all 16 calls on a lost stream fail at once, and that the next call opens a new stream.
func TestStreamLost(t *testing.T) {
	t.Parallel()
	inCall := make(chan struct{}, 16)
	var hang atomic.Bool
	a := &streamAgent{on: answers{"tools/call": func(q *request) {
		if !hang.Load() {
			q.pass()
			return
		}
		q.w.WriteHeader(http.StatusAccepted)
		inCall <- struct{}{}
	}}}
	ctx, p, ep := dial(t, a)
	mustCall(t, p, ep, Request{Tool: "x"})
	hang.Store(true)
	var done []<-chan error
	for range 16 {
		done = append(done, startCall(ctx, p, ep))
	}
	for range 16 {
		<-inCall
	}
	hang.Store(false)
	begin := time.Now()
	a.endAll()
	for _, call := range done {
		expectFailure(t, "lost in a call", <-call, CallError{Stage: StageCall, Written: true})
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("noticed after %s", took)
	}
	mustCall(t, p, ep, Request{Tool: "x"})
	// If the stream is lost between calls, the next caller does not notice, even if the worker has not noticed the loss
	// yet.
	a.endAll()
	mustCall(t, p, ep, Request{Tool: "x"})
	heraldtest.Equal(t, "streams", a.seen("GET"), 3)
}

// TestManyValuesInPostURL: each value in the address of requests is masked like a session id, which costs a search of
// every answer. An agent cannot make one answer occupy the processor for seconds by naming hundreds of values.
func TestManyValuesInPostURL(t *testing.T) {
	t.Parallel()
	address := "/post?s=0" + strings.Repeat("&a=0123456789abcdef", 7)
	_, err := callOnce(t, &streamAgent{endpoint: address})
	heraldtest.Must(t, err)
	_, err = callOnce(t, &streamAgent{endpoint: address + "&a=0123456789abcdef"})
	heraldtest.Fails(t, "9 values", err, "names an address with more than 8 parameters")
}
