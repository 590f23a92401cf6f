package mcpcall

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestListedEndpoints(t *testing.T) {
	t.Parallel()
	ctx, p, web := dial(t, &agent{}, func(c *Config) { c.Guard, c.StdioCommands = must(netguard.New(netguard.Config{})), nil })
	refused := func(what string, ep Endpoint, as any) {
		t.Helper()
		if _, err := p.Call(ctx, ep, Request{Tool: "pid"}); !errors.As(err, as) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cmd := command("plain")
	refused("a stranger's loopback address", web, new(*netguard.BlockedError))
	refused("a stranger's command", cmd, new(*TransportRefusedError))
	web.Listed, cmd.Listed = true, true
	mustCall(t, p, web, Request{Tool: "x"})
	mustCall(t, p, cmd, Request{Tool: "pid"})
	web.Listed = false // an unlisted endpoint must not share the listed one's client
	refused("a stranger's loopback address, once listed", web, new(*netguard.BlockedError))
	for _, url := range []string{"http://169.254.169.254/mcp", "http://[fd00:ec2::254]/mcp", "http://100.100.100.200/mcp"} {
		refused(url, Endpoint{Transport: TransportHTTP, URL: url, Listed: true}, new(*netguard.BlockedError))
	}
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, func(c *Config) { c.Clock, c.MaxAge, c.IdleTimeout = now.Now, time.Hour, 100*time.Hour })
	ep := command("plain:" + dir)
	ctx := heraldtest.Within(t, 30*time.Second)
	pid := func() string { t.Helper(); return must(p.Call(ctx, ep, Request{Tool: "pid"})).Text }
	first := pid()
	now.Advance(59 * time.Minute)
	heraldtest.Equal(t, "the process before its end", pid(), first)
	// A call in flight ends with the old process, while the next call starts a new one.
	until := filepath.Join(t.TempDir(), "answer")
	answer := newSignal(t, until)
	inFlight := make(chan string, 1)
	go func() {
		a, err := p.Call(ctx, ep, Request{Tool: "slow", Arguments: map[string]any{"until": until}})
		if err != nil {
			t.Error(err)
		}
		inFlight <- a.Text
	}()
	heraldtest.Await(t, "the call is in flight", func() bool { return p.inFlight(ep) == 1 })
	now.Advance(2 * time.Minute)
	second := pid()
	if second == first {
		t.Error("not replaced")
	}
	answer()
	heraldtest.Equal(t, "the call in flight was answered by", <-inFlight, first)
	now.Advance(2 * time.Hour)
	p.closeIdle()
	closePool(t, p)
	noneLeft(t, dir, 2)
}

// inFlight returns the number of calls in flight on ep's client.
func (p *Pool) inFlight(ep Endpoint) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.slots[ep.ClientKey()]; s != nil && s.conn != nil {
		return s.conn.inflight
	}
	return 0
}

func (p *Pool) has(ep Endpoint) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.slots[ep.ClientKey()]
	return s != nil && s.conn != nil
}

// TestHealth checks that clients are given up that no longer answer a check, and no others.
func TestHealth(t *testing.T) {
	t.Parallel()
	var sick atomic.Bool
	// whenSick is an answer that replaces the usual one as soon as the agent is sick.
	whenSick := func(usual, do func(*request)) func(*request) {
		return func(q *request) {
			if sick.Load() {
				do(q)
				return
			}
			usual(q)
		}
	}
	pass := func(q *request) { q.pass() }
	// An HTTP agent that forgets its session, an agent that hangs, and an agent without a session, which needs no
	// check.
	forgets := &agent{session: "s", on: answers{"ping": whenSick(func(q *request) { q.refuse(200, -32601, "what is a ping") }, statuses(404, ""))}}
	hangs := &agent{session: "s", on: answers{"ping": whenSick(results(`{}`), func(q *request) { q.hang(); q.result(`{}`) })}}
	busy := &agent{session: "s", on: answers{"ping": statuses(http.StatusServiceUnavailable, "")}}
	stateless := &agent{}
	silent := whenSick(pass, statuses(http.StatusAccepted, ""))
	stream := &streamAgent{on: answers{"ping": silent, "tools/list": silent}}
	now := heraldtest.NewClock(time.Now())
	// Those that fall ill have a pool of their own, which gives them up soon. The others have all the time that they need.
	ill, well := newPool(t, patient(now)), newPool(t, patient(now))
	dir := t.TempDir()
	stopped := command("plain:" + dir)
	modernCommand := command("plain")
	modernCommand.ProtocolHint = modernVersion
	type client struct {
		pool *Pool
		Endpoint
	}
	all := map[string]client{
		"forgets": {ill, at(t, forgets)}, "hangs": {ill, at(t, hangs)}, "stream": {ill, at(t, stream)}, "stopped command": {ill, stopped},
		"busy": {well, at(t, busy)}, "stateless": {well, at(t, stateless)}, "modern command": {well, modernCommand},
	}
	ctx := heraldtest.Within(t, 60*time.Second)
	callAll := func(when string) {
		t.Helper()
		for name, c := range all {
			if _, err := c.pool.Call(ctx, c.Endpoint, Request{Tool: "pid"}); err != nil {
				t.Fatalf("%s, %s: %v", name, when, err)
			}
		}
	}
	callAll("at first")
	round := func() {
		checkAll(t, ill)
		checkAll(t, well)
	}
	round()
	heraldtest.Equal(t, "pings at once", forgets.seen("ping"), 0)
	now.Advance(2 * time.Minute)
	round()
	round() // too soon after the last
	for name, c := range all {
		if !c.pool.has(c.Endpoint) {
			t.Errorf("%s: a healthy client was retired", name)
		}
	}
	ill.mu.Lock()
	if ill.slots[stopped.ClientKey()].conn.noPing {
		t.Error("a command's answer to ping was not taken for one")
	}
	ill.mu.Unlock()
	if forgets.seen("ping") != 1 || stream.seen("ping") != 1 || stateless.seen("ping") != 0 {
		t.Errorf("asked %d, %d and %d times", forgets.seen("ping"), stream.seen("ping"), stateless.seen("ping"))
	}
	sick.Store(true)
	for _, pid := range started(t, dir) {
		heraldtest.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
		// The process stops when one of its threads receives the signal. Until then, the other threads run.
		heraldtest.Await(t, "the command is stopped", func() bool { return processState(pid) == "T" })
	}
	ill.limitChecks(200 * time.Millisecond)
	now.Advance(2 * time.Minute)
	round()
	if !ill.has(stopped) {
		t.Error("a command that may be busy was ended at once")
	}
	now.Advance(2 * time.Minute)
	round()
	for name, c := range all {
		if want := c.pool == well; c.pool.has(c.Endpoint) != want {
			t.Errorf("%s: kept is %v, want %v", name, !want, want)
		}
	}
	sick.Store(false)
	ill.limitChecks(30 * time.Second)
	now.Advance(time.Minute) // the command's backoff
	callAll("afterwards")
	closePool(t, ill)
	noneLeft(t, dir, 2)
}

func TestDrop(t *testing.T) {
	t.Parallel()
	answer, inCall, release := blocking()
	a := &agent{session: "s", on: answers{"tools/call": answer}}
	ctx, p, ep := dial(t, a)
	p.Drop(ep) // has no effect: no call has opened a client
	done := startCall(ctx, p, ep)
	<-inCall
	p.Drop(ep)
	heraldtest.Equal(t, "sessions ended under a call", a.seen("DELETE"), 0)
	close(release)
	heraldtest.Must(t, <-done)
	heraldtest.Await(t, "the session is ended", func() bool { return a.seen("DELETE") == 1 })
}

// TestDropWhileOpening checks that a client that is dropped while it is being opened is closed afterwards.
func TestDropWhileOpening(t *testing.T) {
	t.Parallel()
	answer, opening, release := blocking()
	a := &agent{session: "s", on: answers{"initialize": answer}}
	ctx, p, ep := dial(t, a)
	done := startCall(ctx, p, ep)
	<-opening
	p.Drop(ep)
	close(release)
	heraldtest.Must(t, <-done)
	heraldtest.Await(t, "the dropped client is closed", func() bool { return a.seen("DELETE") == 1 })
	heraldtest.Equal(t, "initialize requests", a.seen("initialize"), 2)
}

// TestReplacedUnderLoad checks that 64 callers continue while their clients are dropped, expire, lose their streams and
// die.
func TestReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	stream := &streamAgent{}
	web := &agent{session: "s", tools: `{"tools":[]}`}
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, func(c *Config) {
		c.Clock, c.MaxAge, c.PingAfter = now.Now, time.Minute, time.Minute
	})
	eps := []Endpoint{{Transport: TransportHTTP, URL: serve(t, web).URL}, streamOf(serve(t, stream)), command("plain")}
	ctx := heraldtest.Within(t, 120*time.Second)
	ended := make(chan struct{}, 64*20) // one element per call, so that faults keep pace with the calls on machines of any speed
	var calls sync.WaitGroup
	var good [3]atomic.Int64 // indexed by transport
	var lost atomic.Int64
	for i := range 64 {
		ep := eps[i%len(eps)]
		tool := map[string]string{TransportStdio: "pid"}[ep.Transport]
		calls.Go(func() {
			for range 20 {
				_, err := p.Call(ctx, ep, Request{Tool: tool})
				ended <- struct{}{}
				var e *CallError
				switch {
				case err == nil:
					good[i%len(eps)].Add(1)
				case ep.Transport == TransportSSE && errors.As(err, &e) && lostWithStream(e):
					lost.Add(1)
				default:
					t.Errorf("%s: %v", ep.Transport, err)
				}
				if _, err := p.Tools(ctx, ep, true); err != nil && ep.Transport != TransportSSE {
					t.Errorf("%s: %v", ep.Transport, err)
				}
			}
		})
	}
	var trouble sync.WaitGroup
	trouble.Go(func() {
		n := 0
		for range ended {
			n++
			p.closeIdle()
			p.checkIdle()
			if n%8 == 0 {
				stream.endAll()
			}
			if n%20 == 0 {
				now.Advance(10 * time.Second)
			}
			if n%80 == 0 {
				for _, ep := range eps {
					p.Drop(ep)
				}
			}
		}
	})
	calls.Wait()
	close(ended)
	trouble.Wait()
	for i, ep := range eps {
		least := int64(420) // 21 callers with 20 calls each
		if ep.Transport == TransportSSE {
			least = 32
		}
		if n := good[i].Load(); n < least {
			t.Errorf("%s: %d good calls, want %d", ep.Transport, n, least)
		}
		t.Logf("%s: %d good", ep.Transport, good[i].Load())
	}
	t.Logf("%d lost with their stream", lost.Load())
}

// lostWithStream reports whether e is due to a stream that ended during a call which the agent may have run, or during
// several handshakes in succession.
func lostWithStream(e *CallError) bool {
	ended := strings.Contains(e.Error(), "event stream")
	switch {
	case e.Timeout:
		return false
	case e.Stage == StageOpen:
		return ended || e.Status == http.StatusNotFound || strings.Contains(e.Error(), "drops every connection")
	}
	return e.Written && ended || !e.Written && (ended || errors.Is(e, ErrSessionGone)) // ErrSessionGone is returned after two lost sessions in succession
}

// shellAgent answers the older handshake and one call. It starts fast.
const shellAgent = `while IFS= read -r line; do
case $line in *'"id":'*) ;; *) continue ;; esac
id=${line#*'"id":'}; id=${id%%,*}
printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"0"},"content":[]}}\n' "$id"
done`

// TestCycles checks that a thousand clients of each kind leave no goroutine, process, zombie or socket behind. It does
// not run in parallel, because it counts them.
func TestCycles(t *testing.T) {
	const cycles = 200
	web, stream := serve(t, &agent{session: "s"}), serve(t, &streamAgent{})
	for name, ep := range map[string]Endpoint{
		"http":       {Transport: TransportHTTP, URL: web.URL},
		"http, 2026": {Transport: TransportHTTP, URL: serve(t, modern(nil)).URL, ProtocolHint: modernVersion},
		"sse":        streamOf(stream),
		"stdio":      {Transport: TransportStdio, Command: "/bin/sh", Args: []string{"-c", shellAgent}},
	} {
		t.Run(name, func(t *testing.T) {
			before, running := openFiles(t), runtime.NumGoroutine()
			guard := guardtest.Loopback(t, nil)
			p := must(NewPool(Config{Guard: guard, StdioCommands: [][]string{{"/bin/sh", "-c", shellAgent}}}))
			ctx := heraldtest.Within(t, 5*time.Minute)
			const workers = 8 // each worker uses its own clients
			var wg sync.WaitGroup
			for w := range workers {
				mine := ep
				mine.Dir = ""
				if mine.URL != "" {
					mine.URL += fmt.Sprintf("?w=%d", w)
				} else {
					mine.Env = []string{fmt.Sprintf("WORKER=%d", w)}
				}
				wg.Go(func() {
					for range cycles / workers {
						if _, err := p.Call(ctx, mine, Request{Tool: "echo"}); err != nil {
							t.Error(err)
							return
						}
						p.Drop(mine)
					}
				})
			}
			wg.Wait()
			closePool(t, p)
			if left := children(t); len(left) > 0 {
				t.Errorf("processes left: %v", left)
			}
			heraldtest.Await(t, "files and sockets are closed", func() bool { return openFiles(t) <= before })
			heraldtest.Await(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= running })
		})
	}
}

// openFiles returns the number of this process's file descriptors, which include pipes and sockets.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	return len(entries)
}

// children returns the processes whose parent is this process, including zombies.
func children(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, e := range must(os.ReadDir("/proc")) {
		raw, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // not a process, or already ended
		}
		after := string(raw[bytes.LastIndexByte(raw, ')')+1:])
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			out = append(out, e.Name()+" "+fields[0])
		}
	}
	return out
}
