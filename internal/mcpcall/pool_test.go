package mcpcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := NewPool(Config{}); err == nil {
		t.Error("no guard, no error")
	}
}

func TestOneClientPerCredential(t *testing.T) {
	t.Parallel()
	a := &agent{session: "s"}
	ctx, p, ep := dial(t, a)
	var wg sync.WaitGroup
	for i := range 64 {
		ep := ep
		if i%2 == 1 {
			ep.Headers = map[string]secret.Secret{"Authorization": secret.New("Bearer 12345678")}
		}
		wg.Go(func() {
			if _, err := p.Call(ctx, ep, Request{Tool: "x"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	heraldtest.Equal(t, "initialize requests", a.seen("initialize"), 2)
}

// TestSharedWhileReplaced checks that concurrent callers continue while their sessions end.
func TestSharedWhileReplaced(t *testing.T) {
	t.Parallel()
	var session, forgotten atomic.Int64
	a := &agent{}
	a.on = func(method string, w http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		switch method {
		case "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(session.Add(1)))
		case "tools/call":
			var id int64
			_, _ = fmt.Sscan(r.Header.Get("Mcp-Session-Id"), &id)
			if n := a.seen("tools/call"); n%100 == 0 {
				forgotten.Store(session.Load())
			}
			if id <= forgotten.Load() {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
		}
		return false
	}
	ctx, p, ep := dial(t, a)
	var good, gone atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 10 {
				_, err := p.Call(ctx, ep, Request{Tool: "x"})
				switch {
				case err == nil:
					good.Add(1)
				case errors.Is(err, ErrSessionGone): // twice in succession
					gone.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if good.Load() < 320 || session.Load() < 2 { // on a busy machine, many calls lose two sessions in succession
		t.Errorf("%d good, %d gone, %d sessions", good.Load(), gone.Load(), session.Load())
	}
}

func TestIdleAndBounded(t *testing.T) {
	t.Parallel()
	inCall, release := make(chan struct{}), make(chan struct{})
	a := &agent{session: "s", on: func(method string, _ http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		if method == "tools/call" {
			inCall <- struct{}{}
			<-release
		}
		return false
	}}
	srv := httptest.NewServer(a)
	defer srv.Close()
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, func(c *Config) { c.MaxClients, c.Clock = 2, now.Now })
	ctx := heraldtest.Within(t, 30*time.Second)
	at := func(path string) Endpoint { return Endpoint{Transport: TransportHTTP, URL: srv.URL + path} }
	held := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.slots) }

	a.tools = `{"tools":[]}`
	for _, path := range []string{"/1", "/2", "/3"} {
		now.Advance(time.Second)
		mustList(t, p, at(path))
	}
	heraldtest.Equal(t, "clients", held(), 2)
	heraldtest.Await(t, "the longest unused one was closed", func() bool { return a.seen("DELETE") == 1 })

	done := make(chan error)
	for _, path := range []string{"/2", "/3"} {
		go func() {
			_, err := p.Call(ctx, at(path), Request{Tool: "x"})
			done <- err
		}()
		<-inCall
	}
	_, err := p.Tools(ctx, at("/4"), false)
	heraldtest.Fails(t, "all in use", err, ErrBusy)
	now.Advance(time.Hour)
	p.closeIdle()
	heraldtest.Equal(t, "clients, of which none is idle", held(), 2)
	close(release)
	for range 2 {
		heraldtest.Must(t, <-done)
	}
	p.closeIdle()
	heraldtest.Equal(t, "idle clients kept", held(), 0)
	heraldtest.Await(t, "the idle ones were closed", func() bool { return a.seen("DELETE") == 3 })
}

func TestClose(t *testing.T) {
	t.Parallel()
	inCall := make(chan struct{}, 2)
	a := &agent{on: onMethod("tools/call", func(_ http.ResponseWriter, r *http.Request, _ json.RawMessage) {
		inCall <- struct{}{}
		<-r.Context().Done()
	})}
	_, p, ep := dial(t, a)
	done := make(chan error, 2)
	for _, ep := range []Endpoint{ep, command("plain")} {
		go func() {
			req := Request{Tool: "x"}
			if ep.Transport == TransportStdio {
				req.Tool = "hang"
			}
			_, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, req)
			done <- err
		}()
	}
	<-inCall
	heraldtest.Await(t, "both are in a call", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := 0
		for _, s := range p.slots {
			if s.conn != nil {
				n += s.conn.inflight
			}
		}
		return n == 2
	})
	ctx := heraldtest.Within(t, 50*time.Millisecond)
	start := time.Now()
	heraldtest.Fails(t, "Close", p.Close(ctx), context.DeadlineExceeded)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("Close took %s", took)
	}
	for range 2 {
		var e *CallError
		if err := <-done; !errors.As(err, &e) || e.Stage != StageCall {
			t.Errorf("cut off: %v", err)
		}
	}
	_, err := p.Call(t.Context(), ep, Request{Tool: "x"})
	heraldtest.Fails(t, "after Close", err, ErrClosed)
	heraldtest.Must(t, p.Close(t.Context()))
}

// sampleFeedback returns all arguments of agent.receiveFeedback.
func sampleFeedback(id string) map[string]any {
	const address = "0x00000000000000000000000000000000000000AA"
	return map[string]any{"deliveryId": id, "clientAddress": address, "feedbackIndex": json.Number("7"), "score": job.Decimal{Unscaled: big.NewInt(9977), Decimals: 2},
		"value": "9977", "valueDecimals": json.Number("2"), "tag1": "", "tag2": "", "endpoint": "", "fileUri": nil, "fileHash": nil, "fileContent": nil,
		"fileVerification": "not_given", "fileSource": nil, "blockNumber": nil, "timestamp": nil, "agentId": "42", "agentRegistry": "eip155:31337:" + address,
		"chainId": json.Number("31337"), "transactionHash": nil, "logIndex": nil}
}

// TestExampleAgent builds the example agent that authors copy.
func TestExampleAgent(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "agent")
	build := exec.CommandContext(heraldtest.Within(t, 2*time.Minute), "go", "build", "-ldflags=-s -w", "-o", binary, "../../examples/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make builds it, also under the race detector
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("both transports", func(t *testing.T) { callExampleAgent(t, binary) })
	t.Run("one Herald", func(t *testing.T) { callSignedExampleAgent(t, binary) })
}

// callExampleAgent calls the agent over both transports.
func callExampleAgent(t *testing.T, binary string) {
	web := exec.CommandContext(heraldtest.Within(t, time.Minute), binary, "-http", "127.0.0.1:0")
	web.Cancel = func() error { return web.Process.Signal(os.Interrupt) }
	stderr, err := web.StderrPipe()
	heraldtest.Must(t, err)
	heraldtest.Must(t, web.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	heraldtest.Must(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		t.Fatalf("said %q", line)
	}

	p := newPool(t, func(c *Config) { c.StdioCommands = [][]string{{binary}} })
	for name, ep := range map[string]Endpoint{
		"http":        {Transport: TransportHTTP, URL: url},
		"http modern": {Transport: TransportHTTP, URL: url, ProtocolHint: modernVersion},
		"stdio":       {Transport: TransportStdio, Command: binary},
	} {
		ctx := heraldtest.Within(t, 30*time.Second)
		set, err := p.Tools(ctx, ep, false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		tool, ok := Find(set.Tools, feedbackTool, Aliases(feedbackTool))
		if !ok {
			t.Fatalf("%s: no tool in %+v", name, set)
		}
		id := uuid.NewString()
		sent := sampleFeedback(id)
		sent["more"] = "an argument that the schema forbids"
		args, err := Fit(tool, sent)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{`{"acknowledged":true,"deliveryId":"` + id + `","duplicate":false}`, `{"acknowledged":true,"deliveryId":"` + id + `","duplicate":true}`} {
			a, err := p.Call(ctx, ep, Request{Tool: tool.Name, Arguments: args})
			if err != nil || a.IsError || a.Text != want {
				t.Errorf("%s: got %+v, %v; want %s", name, a, err, want)
			}
		}
	}
	heraldtest.Must(t, web.Process.Signal(os.Interrupt))
	if err := web.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}
