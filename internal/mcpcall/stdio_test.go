package mcpcall

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func command(mode string) Endpoint {
	return Endpoint{Transport: TransportStdio, Command: os.Args[0], Env: []string{childMode + "=" + mode}}
}

// openCommand starts a command that need not answer more than the handshake.
func openCommand(t *testing.T, p *Pool, ep Endpoint) {
	t.Helper()
	listing := newDeadline(t)
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		_, _ = p.Tools(listing, ep, false)
	}()
	heraldtest.Await(t, "the command runs", func() bool { return p.has(ep) })
	listing.pass()
	<-listed
}

// started reads which processes a mode with a folder started.
func started(t *testing.T, dir string) []int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	heraldtest.Must(t, err)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		heraldtest.Must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func alive(pid int) bool {
	switch processState(pid) {
	case "":
		return false
	case "?":
		return syscall.Kill(pid, 0) == nil
	case "Z": // a zombie that waits for the container's init has ended
		return false
	}
	return true
}

// processState returns the kernel's letter for the state of a process: T stopped, Z zombie, "" no such process, "?"
// unknown.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return ""
	case err != nil:
		return "?"
	}
	after := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return after[:min(1, len(after))]
}

func noneLeft(t *testing.T, dir string, want int) {
	t.Helper()
	pids := started(t, dir)
	if len(pids) < want {
		t.Errorf("%d processes were started, want at least %d", len(pids), want)
	}
	for _, pid := range pids {
		heraldtest.Await(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
	}
}

func closePool(t *testing.T, p *Pool) {
	t.Helper()
	if err := p.Close(heraldtest.Within(t, 30*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestRealServerOverStdio(t *testing.T) {
	t.Parallel()
	for _, hint := range []string{"", modernVersion} {
		t.Run("hint "+hint, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := newPool(t, func(c *Config) { c.OpenTimeout, c.ProbeTimeout = 20*time.Second, 10*time.Second }) // a slow start is no old agent
			ep := command("plain:" + dir)
			ep.ProtocolHint = hint
			ctx := heraldtest.Within(t, 30*time.Second)
			set, err := p.Tools(ctx, ep, false)
			if err != nil || len(set.Tools) != 5 || set.Server.Name != "child" {
				t.Fatalf("%+v, %v", set, err)
			}
			first := mustCall(t, p, ep, Request{Tool: "pid"})
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					a, err := p.Call(ctx, ep, Request{Tool: "pid"})
					if err != nil || a.Text != first.Text {
						t.Errorf("%q, %v; want %q", a.Text, err, first.Text)
					}
				})
			}
			wg.Wait()
			heraldtest.Equal(t, "processes for one endpoint", len(started(t, dir)), 1)
			closePool(t, p)
			noneLeft(t, dir, 1)
		})
	}
}

func TestStdioRefusesUnlistedCommands(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *Config) { c.StdioCommands = [][]string{{"/bin/echo", "a b"}, {os.Args[0], "x"}} })
	for _, ep := range []Endpoint{
		{Transport: TransportStdio},
		{Transport: TransportStdio, Command: "/bin/echo"},
		{Transport: TransportStdio, Command: "/bin/echo", Args: []string{"a", "b"}},
		{Transport: TransportStdio, Command: "/bin/echo a b"},
		{Transport: TransportStdio, Command: "/bin/echo", Args: []string{"a b", ""}},
		{Transport: TransportStdio, Command: os.Args[0]},
		{Transport: "ws", URL: "ws://127.0.0.1/"},
		{Transport: "sse", URL: "ftp://127.0.0.1/"},
		{Transport: ""},
		{Transport: TransportHTTP, URL: "ftp://127.0.0.1/"},
		{Transport: TransportHTTP, URL: "/mcp"},
	} {
		if _, err := p.Call(t.Context(), ep, Request{Tool: "x"}); !errors.As(err, new(*TransportRefusedError)) {
			t.Errorf("%+v: %v", ep, err)
		}
	}
}

func TestStdioEnvironmentIsClean(t *testing.T) {
	t.Setenv("HERALD_TEST_SECRET", "must-not-be-seen")
	p := newPool(t)
	a := mustCall(t, p, command("plain"), Request{Tool: "env"})
	for _, kv := range strings.Split(a.Text, "\n") {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "PATH", "HOME", "LANG", childMode:
		default:
			t.Errorf("the command sees %s", name)
		}
	}
}

func TestStdioDeathAndRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPool(t)
	ep := command("plain:" + dir)
	ctx := heraldtest.Within(t, 30*time.Second)
	first := mustCall(t, p, ep, Request{Tool: "pid"})

	// The command dies in a call: the call may have run.
	_, err := p.Call(ctx, ep, Request{Tool: "die"})
	expectFailure(t, "died in a call", err, CallError{Stage: StageCall, Written: true}, "exit status 7")
	second, err := p.Call(ctx, ep, Request{Tool: "pid"})
	if err != nil || second.Text == first.Text {
		t.Fatalf("no new process: %q, %v", second.Text, err)
	}

	// The command dies between calls: no caller notices.
	pid, err := strconv.Atoi(second.Text)
	heraldtest.Must(t, err)
	p.mu.Lock()
	exited := p.slots[ep.ClientKey()].conn.process.Exited()
	p.mu.Unlock()
	heraldtest.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	<-exited // until the process has exited, its pipe may still accept a write, and the outcome would be unknown
	third, err := p.Call(ctx, ep, Request{Tool: "pid"})
	if err != nil || third.Text == second.Text {
		t.Fatalf("after a death between calls: %q, %v", third.Text, err)
	}
	closePool(t, p)
	noneLeft(t, dir, 3)
}

func TestStdioBackoff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPool(t)
	ep := command("exit:" + dir)
	var e *CallError
	for i := range 20 {
		_, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "x"})
		if !errors.As(err, &e) || e.Stage != StageOpen || e.Written {
			t.Fatalf("got %v", err)
		}
		if i == 0 && (!strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no database")) {
			t.Errorf("the reason is missing: %v", err)
		}
		if e.RetryAfter > 0 {
			break
		}
	}
	if e.RetryAfter <= time.Second {
		t.Errorf("no backoff: %v", e)
	}
	if n := len(started(t, dir)); n > 8 {
		t.Errorf("started %d times", n)
	}
	_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportStdio, Command: os.Args[0], Dir: "/nowhere"}, Request{Tool: "x"})
	expectFailure(t, "a folder that does not exist", err, CallError{Stage: StageOpen}, "does not start")
}

func TestStdioMisbehaving(t *testing.T) {
	t.Parallel()
	small := Request{Tool: "pid"}
	for _, tt := range []struct {
		mode, hint string
		req        Request
		fails      string // "": the call succeeds
		least      int    // processes started
	}{
		{mode: "deaf", req: Request{Tool: "x", Arguments: map[string]any{"a": strings.Repeat("x", 1<<20)}}, fails: "timeout", least: 1},
		{mode: "endless", req: small, fails: "too large", least: 1},
		{mode: "strict", hint: modernVersion, req: small, least: 2},
		{mode: "mute", hint: modernVersion, req: small, least: 2},
		{mode: "forks", req: small, least: 2},
		{mode: "stubborn", req: small, least: 1},
		{mode: "noisy", req: small, least: 1},
		{mode: "floods", req: small, least: 1},
		{mode: "hangs", req: Request{Tool: "hang"}, fails: "timeout", least: 1},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := newPool(t)
			ep := command(tt.mode + ":" + dir)
			ep.ProtocolHint = tt.hint
			limit := 30 * time.Second
			if tt.mode == "deaf" || tt.mode == "hangs" {
				openCommand(t, p, ep)
				limit = 3 * time.Second
			}
			start := time.Now()
			a, err := p.Call(heraldtest.Within(t, limit), ep, tt.req)
			if took := time.Since(start); took > limit+10*time.Second {
				t.Errorf("took %s", took)
			}
			var e *CallError
			switch {
			case tt.fails == "" && (err != nil || tt.hint != "" && a.Protocol != legacyVersion):
				t.Errorf("got %+v, %v", a, err)
			case tt.fails != "" && (!errors.As(err, &e) || !e.Written || e.Timeout != (tt.fails == "timeout") || errors.As(err, new(*TooLargeError)) != (tt.fails == "too large")):
				t.Errorf("got %v, want %s", err, tt.fails)
			}
			closePool(t, p)
			noneLeft(t, dir, tt.least)
		})
	}
}

// TestExitingCommandIsNotKilled checks that a command which is asked to exit is not killed because writing to it fails.
func TestExitingCommandIsNotKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPool(t)
	mustCall(t, p, command("farewell:"+dir), Request{Tool: "x"})
	heraldtest.Must(t, p.Close(heraldtest.Within(t, 30*time.Second)))
	_, err := os.Stat(filepath.Join(dir, "done"))
	heraldtest.Must(t, err)
}

// TestNothingOutlivesAKilledWorker checks that a worker that is killed leaves no processes behind: neither its command
// nor the processes that the command started, even if they became daemons. The same holds for a command that is killed.
func TestNothingOutlivesAKilledWorker(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	for _, victim := range []string{"worker", "command"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			folder := filepath.Join(dir, "command")
			heraldtest.Must(t, os.Mkdir(folder, 0o700))
			worker := exec.CommandContext(heraldtest.Within(t, 60*time.Second), os.Args[0])
			worker.Env = append(os.Environ(), childMode+"=pool:"+dir)
			worker.Stderr = os.Stderr
			out, err := worker.StdoutPipe()
			heraldtest.Must(t, err)
			heraldtest.Must(t, worker.Start())
			defer func() {
				_ = worker.Process.Kill()
				_ = worker.Wait() // it was killed
			}()
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "called\n" {
				t.Fatalf("%q, %v", line, err)
			}
			pids := started(t, folder)
			if len(pids) != 3 {
				t.Fatalf("%d processes were started, want 3", len(pids))
			}
			for _, pid := range pids {
				if !alive(pid) {
					t.Fatalf("process %d is gone already", pid)
				}
			}
			if victim == "worker" {
				err = worker.Process.Kill()
			} else {
				err = killNamed(pids, os.Args[0])
			}
			heraldtest.Must(t, err)
			noneLeft(t, folder, 3)
		})
	}
}

// killNamed kills the process among pids that runs the program.
func killNamed(pids []int, program string) error {
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(line), program+"\x00") {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return errors.New("no process runs " + program)
}

// hang blocks for longer than any test lasts. Go would report select {} as a deadlock.
func hang() { <-time.After(time.Hour) }
