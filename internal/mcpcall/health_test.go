package mcpcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// checkAll starts every check that is due and waits until all have ended.
func checkAll(t *testing.T, p *Pool) {
	t.Helper()
	p.checkIdle()
	awaitChecks(t, p)
}

// patient stops the pool's clock and sets an idle timeout that the test never reaches. A healthy agent must answer
// within three seconds, a command within half of that.
func patient(now *heraldtest.Clock) func(*Config) {
	return func(c *Config) {
		c.Clock, c.PingAfter, c.IdleTimeout, c.OpenTimeout = now.Now, time.Minute, 100*time.Hour, 20*time.Second
	}
}

// limitChecks bounds the checks that begin from now on, and handshakes. A server that cannot answer may be given up soon.
func (p *Pool) limitChecks(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.OpenTimeout = d
}

// A client that is given up as broken still ends the calls that are in flight, a command's too.
func TestRetiringDrains(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	dir := t.TempDir()
	ep := command("later:" + dir)
	answer := newSignal(t, filepath.Join(dir, "answer"))
	ctx := heraldtest.Within(t, 30*time.Second)
	mustList(t, p, ep)
	done := startCall(ctx, p, ep)
	heraldtest.Await(t, "the call is in flight", func() bool { return p.inFlight(ep) == 1 })
	p.mu.Lock()
	p.slots[ep.ClientKey()].conn.bad.Store(true)
	p.mu.Unlock()
	p.closeIdle()
	if p.has(ep) {
		t.Error("the broken client is still in use")
	}
	answer()
	heraldtest.Must(t, <-done)
}

// TestUsedDuringCheck checks that a client that is used during its check is not given up. The call itself finds out
// whether it works.
func TestUsedDuringCheck(t *testing.T) {
	t.Parallel()
	pinged, called, release := make(chan struct{}, 4), make(chan struct{}), make(chan struct{})
	var slow atomic.Bool
	a := &agent{session: "s", on: answers{
		"ping": func(*request) {
			pinged <- struct{}{}
			<-called
			panic(http.ErrAbortHandler) // the connection ends without an answer: the agent is silent
		},
		"tools/call": func(q *request) {
			if slow.Load() {
				close(called)
				<-release
			}
			q.pass()
		}}}
	now := heraldtest.NewClock(time.Now())
	ctx, p, ep := dial(t, a, patient(now))
	mustCall(t, p, ep, Request{Tool: "x"})
	slow.Store(true)
	now.Advance(2 * time.Minute)
	p.checkIdle()
	<-pinged
	done := startCall(ctx, p, ep)
	<-called
	awaitChecks(t, p)
	if !p.has(ep) {
		t.Error("given up while it was in use")
	}
	close(release)
	heraldtest.Must(t, <-done)
}

// TestSilentStreamInUse checks that a stream is replaced while it is in use, if its agent accepts every request but
// sends nothing on the stream.
func TestSilentStreamInUse(t *testing.T) {
	t.Parallel()
	var dead atomic.Int64 // streams up to this number are silent
	asked := make(chan struct{}, 16)
	a := &streamAgent{}
	a.on = answers{"": func(q *request) {
		if int64(a.seen(http.MethodGet)) > dead.Load() {
			q.pass()
			return
		}
		q.w.WriteHeader(http.StatusAccepted)
		asked <- struct{}{}
	}}
	now := heraldtest.NewClock(time.Now())
	ctx, p, ep := dial(t, a, patient(now))
	mustCall(t, p, ep, Request{Tool: "x"})
	checkAll(t, p)
	heraldtest.Equal(t, "pings without a reason", a.seen("ping"), 0)
	dead.Store(1)
	waits, giveUp := context.WithCancel(ctx)
	done := startCall(waits, p, ep)
	heraldtest.Receive(t, "the call in flight", asked)
	impatient := newDeadline(t)
	go func() {
		<-asked
		impatient.pass()
	}()
	_, err := p.Call(impatient, ep, Request{Tool: "x"})
	expectFailure(t, "the impatient call", err, CallError{Stage: StageCall, Timeout: true, Written: true})
	heraldtest.Await(t, "the other call is in flight", func() bool { return p.inFlight(ep) == 1 })
	p.limitChecks(100 * time.Millisecond)
	checkAll(t, p)
	if p.has(ep) {
		t.Fatal("a stream that says nothing was kept")
	}
	p.limitChecks(30 * time.Second)
	select {
	case err := <-done:
		t.Errorf("the call in flight was cut off: %v", err)
	default:
	}
	giveUp()
	<-done
	mustCall(t, p, ep, Request{Tool: "x"})
}

// TestUnusualHealthyAgents checks that a healthy agent is never given up because it does not support ping, or supports
// only numeric ids that are new.
func TestUnusualHealthyAgents(t *testing.T) {
	t.Parallel()
	var ids sync.Map
	var wrongID atomic.Bool
	agents := map[string]*agent{}
	for name, ping := range map[string]func(*request){
		"202":  statuses(202, ""),
		"200":  statuses(200, ""),
		"400":  statuses(400, ""),
		"null": statuses(200, `{"jsonrpc":"2.0","id":null,"result":{}}`, "Content-Type", "application/json"),
		"number": func(q *request) {
			if _, isKnown := ids.LoadOrStore(string(q.id), true); isKnown || json.Unmarshal(q.id, new(int32)) != nil {
				wrongID.Store(true)
			}
			q.result(`{}`)
		},
	} {
		agents[name] = &agent{session: "s", on: answers{"ping": ping}}
	}
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, patient(now))
	all := map[string]Endpoint{"command": command("simple")}
	for name, a := range agents {
		all[name] = at(t, a)
	}
	for _, ep := range all {
		mustCall(t, p, ep, Request{Tool: "x"})
	}
	for range 3 {
		now.Advance(2 * time.Minute)
		checkAll(t, p)
	}
	for name, ep := range all {
		if !p.has(ep) {
			t.Errorf("%s: given up", name)
		}
	}
	if agents["number"].seen("ping") != 3 || wrongID.Load() {
		t.Errorf("asked %d times, with an id that is no number or was used: %v", agents["number"].seen("ping"), wrongID.Load())
	}
}

// TestBusyCommand checks that a command which still works on an abandoned call is not ended at once, so that its state
// is not lost, but is ended at a later check.
func TestBusyCommand(t *testing.T) {
	t.Parallel()
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, patient(now))
	ep := command("busy")
	mustList(t, p, ep)
	var e *CallError
	if _, err := p.Call(heraldtest.Within(t, time.Second), ep, Request{Tool: "x"}); !errors.As(err, &e) || !e.Timeout {
		t.Fatalf("got %v", err)
	}
	p.limitChecks(100 * time.Millisecond)
	checkAll(t, p)
	if !p.has(ep) {
		t.Error("ended at once")
	}
	now.Advance(2 * time.Minute)
	checkAll(t, p)
	if p.has(ep) {
		t.Error("kept for ever")
	}
}

func TestCloseDuringCheck(t *testing.T) {
	t.Parallel()
	pinged := make(chan struct{}, 1)
	now := heraldtest.NewClock(time.Now())
	ctx, p, ep := dial(t, &agent{session: "s", on: answers{"ping": func(q *request) {
		pinged <- struct{}{}
		q.hang()
	}}}, patient(now), func(c *Config) { c.OpenTimeout = time.Minute })
	mustCall(t, p, ep, Request{Tool: "x"})
	now.Advance(2 * time.Minute)
	p.checkIdle()
	<-pinged
	heraldtest.Must(t, p.Close(ctx))
}

func TestChecksTakeTurns(t *testing.T) {
	t.Parallel()
	a := &agent{session: "s", tools: `{"tools":[]}`}
	srv := serve(t, a)
	now := heraldtest.NewClock(time.Now())
	p := newPool(t, patient(now))
	const clients = 3 * maxChecks
	for i := range clients {
		ep := Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", srv.URL, i)}
		mustList(t, p, ep)
	}
	now.Advance(2 * time.Minute)
	checkAll(t, p)
	if n := a.seen("ping"); n != clients {
		t.Errorf("%d of %d were asked", n, clients)
	}
}

func awaitChecks(t *testing.T, p *Pool) {
	t.Helper()
	heraldtest.Await(t, "the checks end", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.checks == 0 })
}
