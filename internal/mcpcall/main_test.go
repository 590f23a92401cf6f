package mcpcall

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// childMode is the environment variable that makes this binary act as an agent's command instead of running tests; see
// child_test.go.
const childMode = "MCPCALL_TEST_CHILD"

func TestMain(m *testing.M) {
	transport.RunSupervisor()
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode))
	}
	_ = flag.Set("test.parallel", "8") // most of these tests wait for deadlines; the command line overrides it
	heraldtest.Main(m)
}

// newPool returns a pool that can reach loopback and run this test binary. It is closed and checked at the end of the
// test.
func newPool(t testing.TB, adapt ...func(*Config)) *Pool {
	t.Helper()
	guard := guardtest.Loopback(t, nil)
	cfg := Config{Guard: guard, StdioCommands: [][]string{{os.Args[0]}}, RelistAfter: time.Nanosecond, Supervised: true}
	for _, a := range adapt {
		a(&cfg)
	}
	p, err := NewPool(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// dial serves an agent, and returns a pool, the agent's endpoint and a context of 30 s for calls to it.
func dial(t testing.TB, h http.Handler, adapt ...func(*Config)) (context.Context, *Pool, Endpoint) {
	t.Helper()
	ep := at(t, h)
	return heraldtest.Within(t, 30*time.Second), newPool(t, adapt...), ep
}

// mustCall calls a tool within 30 s and ends the test if the call fails.
func mustCall(t testing.TB, p *Pool, ep Endpoint, req Request) Answer {
	t.Helper()
	a, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, req)
	heraldtest.Must(t, err)
	return a
}

// startCall calls a tool in the background. The channel receives the call's error.
func startCall(ctx context.Context, p *Pool, ep Endpoint) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := p.Call(ctx, ep, Request{Tool: "x"})
		done <- err
	}()
	return done
}

// expectFailure reports that err is no *CallError with the values of want (which has no Challenge and Err), or that it
// lacks a cause: a text, an error that it wraps, or the target of errors.As.
func expectFailure(t testing.TB, what string, err error, want CallError, causes ...any) {
	t.Helper()
	e, ok := errors.AsType[*CallError](err)
	if !ok {
		t.Fatalf("%s: %v is no *CallError", what, err)
	}
	got := *e
	got.Challenge, got.Err = nil, nil
	heraldtest.Equal(t, fmt.Sprintf("%s: %v", what, err), got, want)
	for _, cause := range causes {
		switch cause.(type) {
		case nil:
		case string, error:
			heraldtest.Fails(t, what, err, cause)
		default:
			if !errors.As(err, cause) {
				t.Errorf("%s: %v is no %T", what, err, cause)
			}
		}
	}
}

// mustList lists the tools, within 30 s, and ends the test if that fails.
func mustList(t testing.TB, p *Pool, ep Endpoint) ToolSet {
	t.Helper()
	set, err := p.Tools(heraldtest.Within(t, 30*time.Second), ep, false)
	heraldtest.Must(t, err)
	return set
}

// deadline is a context that ends when the test calls pass, independent of the machine's speed. A timer ends it after
// 30 s, so that a test cannot block forever.
type deadline struct {
	context.Context
	end    time.Time
	once   sync.Once
	passed chan struct{}
}

func newDeadline(t *testing.T) *deadline {
	d := &deadline{Context: context.Background(), end: time.Now().Add(30 * time.Second), passed: make(chan struct{})}
	late := time.AfterFunc(time.Until(d.end), d.pass)
	t.Cleanup(func() { late.Stop() })
	return d
}

func (d *deadline) pass()                       { d.once.Do(func() { close(d.passed) }) }
func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return d.passed }

func (d *deadline) Err() error {
	if isClosed(d.passed) {
		return context.DeadlineExceeded
	}
	return nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}

// callHinted calls a tool of an agent whose registration states a version of the protocol.
func callHinted(t testing.TB, h http.Handler, hint string) (Answer, error) {
	t.Helper()
	ctx, p, ep := dial(t, h)
	ep.ProtocolHint = hint
	return p.Call(ctx, ep, Request{Tool: "x"})
}
