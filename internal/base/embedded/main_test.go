package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// helperVariable makes the test binary act as a helper process: "postgres", "fetching" (the same, with Fetch), "redis",
// "mini", "lock" or "fetch", on the folder in the second word. The helper prints one line of JSON and stops in order
// when its input ends.
const helperVariable = "HERALD_EMBEDDED_HELPER"

func TestMain(m *testing.M) {
	if role := os.Getenv(helperVariable); role != "" {
		os.Exit(helper(role))
	}
	_ = os.Unsetenv("SUDO_UID") // of who runs the tests; TestPostgresOfSudo sets it
	goleak.VerifyTestMain(m)
}

// must ends the test if err is not nil. heraldtest.Must is not available here: heraldtest imports this package.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// said is the line that a helper prints.
type said struct {
	URL   string
	PID   int
	User  string
	Error string
}

func helper(spec string) int {
	role, dir, _ := strings.Cut(spec, " ")
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx := context.Background()
	var out said
	stop := func(context.Context) error { return nil }
	var err error
	switch role {
	case "postgres", "fetching":
		var p *Server
		if p, err = StartPostgres(ctx, Config{Dir: dir, Test: true, Fetch: role == "fetching", Logger: log}); err == nil {
			out = said{URL: p.URL(), PID: p.child.cmd.Process.Pid, User: p.acct.String()}
			stop = p.Stop
		}
	case "redis", "mini":
		var r *Server
		if r, err = StartRedis(ctx, Config{Dir: dir, Mode: RedisMode(role), Logger: log}); err == nil {
			out = said{URL: r.URL()}
			if r.mini == nil {
				out.PID, out.User = r.child.cmd.Process.Pid, r.acct.String()
			}
			stop = r.Stop
		}
	case "fetch":
		err = Fetch(ctx, Config{CacheDir: dir, Again: true, Logger: log})
	case "lock":
		var l *Lock
		if l, err = LockDir(dir); err == nil {
			stop = func(context.Context) error { return l.Release() }
		}
	default:
		err = fmt.Errorf("unknown helper %q", role)
	}
	if err != nil {
		out.Error = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
	if err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a running helper.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  said
	ended bool
}

// startHelper runs this test binary as a helper. If uid is not 0, it runs as that user, otherwise with all capabilities
// of this process.
func startHelper(t *testing.T, role, dir string, uid uint32) *process {
	t.Helper()
	binary, err := os.Executable()
	must(t, err)
	if uid != 0 {
		binary = openCopy(t, binary)
	}
	cmd := exec.Command(binary)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), helperVariable+"="+role+" "+dir, "HOME=/nonexistent", "SUDO_UID=", "XDG_CACHE_HOME=")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	cmd.Stderr = testWriter{t}
	cmd.WaitDelay = time.Second
	p := &process{t: t, cmd: cmd}
	p.stdin, err = cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		if !p.ended {
			p.kill()
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("helper %s said nothing: %v", role, err)
	}
	must(t, json.Unmarshal(line, &p.said))
	return p
}

// end stops the helper in order.
func (p *process) end() {
	p.t.Helper()
	p.ended = true
	_ = p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("helper: %v", err)
	}
}

// kill sends SIGKILL.
func (p *process) kill() {
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// openTemp returns a temporary folder that every user may enter. The parent of t.TempDir is closed to other users.
func openTemp(t *testing.T) string {
	t.Helper()
	return openTempIn(t, memoryDir())
}

// openTempIn creates such a folder in parent; "" means the system's default.
func openTempIn(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "herald-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o711))
	return dir
}

// openCopy copies the test binary to a folder from which other users can run it.
func openCopy(t *testing.T, binary string) string {
	t.Helper()
	b, err := os.ReadFile(binary)
	must(t, err)
	path := filepath.Join(openTempIn(t, ""), "helper") // nothing may be executed in memory
	// A process that is forked meanwhile would keep the file open for writing, and the kernel would not run it.
	syscall.ForkLock.RLock()
	err = os.WriteFile(path, b, 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	return path
}

// eventually polls until ok or ten seconds have passed.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := pollUntil(ctx, 5*time.Millisecond, func() (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("%s: not within ten seconds", what)
	}
}

// hasEnded reports whether a process has ended. A process that only waits for its parent counts as ended on Linux.
func hasEnded(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || strings.Contains(string(stat), ") Z ")
}

// leaveRunning makes a server a leftover. On Linux it sends the signal that the kernel sends.
func leaveRunning(t *testing.T, s *Server) {
	t.Helper()
	s.child.serving.Store(false) // otherwise its end would be logged as unexpected
	must(t, s.lock.Release())
	if runtime.GOOS == "linux" {
		must(t, s.child.cmd.Process.Signal(s.ask))
	}
}

// needPostgres skips the test on a machine without the programs, unless skipping is forbidden. needRedis is the same
// for Redis.
func needPostgres(t *testing.T) {
	t.Helper()
	acct, err := pickAccount(-1)
	if err == nil {
		_, err = findPostgres(t.Context(), "", 0, acct, slog.New(slog.DiscardHandler))
	}
	need(t, err)
}

func needRedis(t *testing.T) {
	t.Helper()
	acct, err := redisAccount("")
	if err == nil {
		_, err = findRedis(t.Context(), "", acct, slog.New(slog.DiscardHandler))
	}
	need(t, err)
}

func need(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "" || os.Getenv("HERALD_REQUIRE_SERVICES") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}
