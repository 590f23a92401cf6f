package mcpcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
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
	a, lost := forgetful(statuses(http.StatusNotFound, ""))
	call := a.on["tools/call"]
	a.on["tools/call"] = func(q *request) {
		if a.seen(q.method)%100 == 0 {
			lost.Store(int32(a.seen("initialize")))
		}
		call(q)
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
	if sessions := a.seen("initialize"); good.Load() < 320 || sessions < 2 { // on a busy machine, many calls lose two sessions in succession
		t.Errorf("%d good, %d gone, %d sessions", good.Load(), gone.Load(), sessions)
	}
}

// TestIdleConnections: the pool closes an unused connection before the servers that close it after five seconds.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	for name, kept := range map[string]time.Duration{"agents": p.base.IdleConnTimeout, "listed agents": p.listedBase.IdleConnTimeout} {
		if kept <= 0 || kept > 4*time.Second {
			t.Errorf("connections to %s are kept for %s", name, kept)
		}
	}
}

func TestIdleAndBounded(t *testing.T) {
	t.Parallel()
	answer, inCall, release := blocking()
	a := &agent{session: "s", tools: `{"tools":[]}`, on: answers{"tools/call": answer}}
	now := heraldtest.NewClock(time.Now())
	ctx, p, ep := dial(t, a, func(c *Config) { c.MaxClients, c.Clock = 2, now.Now })
	path := func(path string) Endpoint { return Endpoint{Transport: TransportHTTP, URL: ep.URL + path} }
	held := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.slots) }

	for _, name := range []string{"/1", "/2", "/3"} {
		now.Advance(time.Second)
		mustList(t, p, path(name))
	}
	heraldtest.Equal(t, "clients", held(), 2)
	heraldtest.Await(t, "the longest unused one was closed", func() bool { return a.seen("DELETE") == 1 })

	var done []<-chan error
	for _, name := range []string{"/2", "/3"} {
		done = append(done, startCall(ctx, p, path(name)))
		<-inCall
	}
	_, err := p.Tools(ctx, path("/4"), false)
	heraldtest.Fails(t, "all in use", err, ErrBusy)
	now.Advance(time.Hour)
	p.closeIdle()
	heraldtest.Equal(t, "clients, of which none is idle", held(), 2)
	close(release)
	for _, call := range done {
		heraldtest.Must(t, <-call)
	}
	p.closeIdle()
	heraldtest.Equal(t, "idle clients kept", held(), 0)
	heraldtest.Await(t, "the idle ones were closed", func() bool { return a.seen("DELETE") == 3 })
}

func TestClose(t *testing.T) {
	t.Parallel()
	_, p, ep := dial(t, &agent{on: answers{"tools/call": (*request).hang}})
	cmd := command("plain")
	done := make(chan error, 2)
	for ep, tool := range map[*Endpoint]string{&ep: "x", &cmd: "hang"} {
		go func() {
			_, err := p.Call(heraldtest.Within(t, 30*time.Second), *ep, Request{Tool: tool})
			done <- err
		}()
	}
	heraldtest.Await(t, "both are in a call", func() bool { return p.inFlight(ep)+p.inFlight(cmd) == 2 })
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
