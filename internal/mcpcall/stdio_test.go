package mcpcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// child runs this process as an agent's command that behaves as mode says. Its result is the exit code.
func child(mode string) int {
	name, dir, _ := strings.Cut(mode, ":")
	if dir != "" { // record the pid of the process that was started
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600)
	}
	switch name {
	case "exit":
		fmt.Fprintln(os.Stderr, "first line\nno database, token=child-secret")
		return 3
	case "forks": // leaves a grandchild that keeps the pipes open
		sleeper := exec.Command("sleep", "300")
		sleeper.Stdout, sleeper.Stderr = os.Stdout, os.Stderr
		if err := sleeper.Start(); err != nil {
			return 1
		}
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(sleeper.Process.Pid)), nil, 0o600)
	case "daemons": // starts one process outside its session, and one that also lost its parent
		script := exec.Command("sh", "-c", "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
		left := exec.Command("sleep", "300")
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		pid, err := script.Output()
		if err = errors.Join(err, left.Start()); err != nil {
			return 1
		}
		for _, pid := range []string{strings.TrimSpace(string(pid)), strconv.Itoa(left.Process.Pid)} {
			_ = os.WriteFile(filepath.Join(dir, pid), nil, 0o600)
		}
	case "pool": // a worker with such a command, which runs until it is killed
		guard, err := netguard.New(netguard.Config{})
		if err != nil {
			return 1
		}
		p, err := NewPool(Config{Guard: guard, StdioCommands: [][]string{{os.Args[0]}}, Supervised: true})
		if err != nil {
			return 1
		}
		if _, err := p.Call(context.Background(), command("daemons:"+filepath.Join(dir, "command")), Request{Tool: "pid"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("called")
		hang()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "noisy":
		go func() {
			for {
				fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 1000))
			}
		}()
	case "strict": // supports only the old handshake and exits on any other first message
		in := bufio.NewReader(os.Stdin)
		first, err := in.ReadString('\n')
		if err != nil || !strings.Contains(first, `"initialize"`) {
			return 1
		}
		return byHand(in, first)
	case "mute": // ignores unknown messages
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return 0
			}
			if !strings.Contains(line, "server/discover") {
				answerLine(line)
			}
		}
	case "simple", "busy": // supports only numeric ids and no ping; busy stays silent after the first call
		in := bufio.NewReader(os.Stdin)
		for called := false; ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return 0
			}
			var req struct{ ID *int32 }
			if json.Unmarshal([]byte(line), &req) != nil {
				return 1
			}
			called = called || name == "busy" && strings.Contains(line, "tools/call")
			if !called && !strings.Contains(line, `"ping"`) {
				answerLine(line)
			}
		}
	case "later": // answers a call when the signal in its folder is given; exits as soon as its input ends
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			switch {
			case err != nil:
				return 0
			case strings.Contains(line, "tools/call"):
				go func() {
					awaitSignal(filepath.Join(dir, "answer"))
					answerLine(line)
				}()
			default:
				answerLine(line)
			}
		}
	case "farewell": // when its input ends, it sends a request and works for a moment before it exits
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				fmt.Println(`{"jsonrpc":"2.0","id":"q","method":"ping"}`)
				<-time.After(300 * time.Millisecond)
				return exitCode(os.WriteFile(filepath.Join(dir, "done"), nil, 0o600))
			}
			answerLine(line)
		}
	case "deaf": // stops reading after the handshake
		in := bufio.NewReaderSize(os.Stdin, 16)
		for range 2 { // initialize, initialized
			line, err := in.ReadString('\n')
			if err != nil {
				return 1
			}
			answerLine(line)
		}
		hang()
	case "endless":
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return 0
			}
			if strings.Contains(line, "tools/call") {
				for {
					if _, err := fmt.Print(strings.Repeat("x", 1<<16)); err != nil {
						return 0
					}
				}
			}
			answerLine(line)
		}
	case "floods": // sends many requests
		for i := range 5000 {
			fmt.Printf(`{"jsonrpc":"2.0","id":"q%d","method":"ping"}`+"\n", i)
		}
	}
	s := server.NewMCPServer("child", "1")
	s.AddTool(mcp.NewToolWithRawSchema("env", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(strings.Join(os.Environ(), "\n")), nil
	})
	s.AddTool(mcp.NewToolWithRawSchema("pid", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(strconv.Itoa(os.Getpid())), nil
	})
	s.AddTool(mcp.NewToolWithRawSchema(feedbackTool, "", json.RawMessage(`{"type":"object","anyOf":[{"required":["value"]}],"properties":{"value":{"type":"string"}}}`)),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultJSON(r.Params.Arguments)
		})
	s.AddTool(mcp.NewToolWithRawSchema("slow", "", json.RawMessage(`{"type":"object"}`)), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		awaitSignal(r.GetString("until", ""))
		return mcp.NewToolResultText(strconv.Itoa(os.Getpid())), nil
	})
	s.AddTool(mcp.NewToolWithRawSchema("die", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		os.Exit(7)
		return nil, nil
	})
	s.AddTool(mcp.NewToolWithRawSchema("hang", "", json.RawMessage(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		hang()
		return nil, nil
	})
	if err := server.NewStdioServer(s).Listen(context.Background(), os.Stdin, os.Stdout); err != nil {
		return 1
	}
	if name == "stubborn" {
		hang() // ignores the end of its input too
	}
	return 0
}

// newSignal creates a named pipe, which a command waits for with awaitSignal. The function that it returns ends the
// wait.
func newSignal(t *testing.T, path string) (give func()) {
	t.Helper()
	heraldtest.Must(t, syscall.Mkfifo(path, 0o600))
	return func() {
		t.Helper()
		pipe, err := os.OpenFile(path, os.O_RDWR, 0)
		heraldtest.Must(t, err)
		t.Cleanup(func() { _ = pipe.Close() })
	}
}

// awaitSignal opens the named pipe for reading, which blocks until a writer opens it.
func awaitSignal(path string) {
	if pipe, err := os.Open(path); err == nil {
		_ = pipe.Close()
	}
}

func exitCode(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func answerLine(line string) {
	var req struct{ ID json.RawMessage }
	if json.Unmarshal([]byte(line), &req) == nil && req.ID != nil {
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"h","version":"0"},"content":[],"tools":[]}}`+"\n", req.ID)
	}
}

func byHand(in *bufio.Reader, line string) int {
	for {
		answerLine(line)
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return 0
		}
	}
}

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
			if err != nil || len(set.Tools) != 6 || set.Server.Name != "child" {
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
