package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestDefaultDirs(t *testing.T) {
	if os.Geteuid() == 0 {
		if d, c := DefaultDataDir(), DefaultCacheDir(); d != "/var/lib/herald" || c != "/var/cache/herald" {
			t.Errorf("%s %s", d, c)
		}
		equal(t, "the caches", cacheDirs(""), []string{systemCacheDir})
		return
	}
	t.Setenv("HOME", "/home/x")
	for value, want := range map[string]string{"": "/home/x/.local/state/herald", "relative": "/home/x/.local/state/herald", "/s": "/s/herald"} {
		t.Setenv("XDG_STATE_HOME", value)
		equal(t, value, DefaultDataDir(), want)
	}
	t.Setenv("XDG_CACHE_HOME", "/c")
	equal(t, "the caches", cacheDirs(""), []string{"/c/herald", systemCacheDir})
}

func TestLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openTemp(t), "data")
	h := startHelper(t, "lock", dir, 0)
	equal(t, "the error", h.said.Error, "")
	var inUse *InUseError
	if _, err := LockDir(dir); !errors.As(err, &inUse) || inUse.PID != h.cmd.Process.Pid || inUse.Dir != dir {
		t.Errorf("held by another: %v", err)
	}
	// A waiting process gets the lock when the holder dies, in any way.
	got := make(chan error, 1)
	var l *Lock
	go func() {
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		l, err = WaitLockDir(ctx, dir)
		got <- err
	}()
	h.kill()
	must(t, <-got)
	if _, err := LockDir(dir); !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("held by this process: %v", err)
	}
	must(t, errors.Join(l.Release(), l.Release()))
	l, err := LockDir(dir)
	must(t, err)
	must(t, l.Release())
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != ownDirMode() {
		t.Errorf("%v %v", info, err)
	}
	if _, err := LockDir(filepath.Join(dir, lockName)); err == nil {
		t.Error("a file was locked as a folder")
	}
}

func TestRunFile(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	if _, err := ReadRunFile(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	must(t, RemoveRunFile(dir))
	l, err := LockDir(dir)
	must(t, err)
	want := RunFile{PID: os.Getpid(), DatabaseURL: "postgres://herald@/herald?host=/x", RedisURL: "redis-socket:///x", Listen: "127.0.0.1:8080"}
	must(t, WriteRunFile(dir, want))
	if got, err := ReadRunFile(dir); err != nil || got != want {
		t.Errorf("%v %v", got, err)
	}
	path := filepath.Join(dir, runName)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(b), `{"pid":`) || !strings.Contains(string(b), `"databaseUrl":"`) || !strings.Contains(string(b), `"redisUrl":"`) || !strings.Contains(string(b), `"listen":"`) {
		t.Errorf("%s %v", b, err)
	}
	// The process is alive, but does not hold the folder: its pid was reused by another program.
	var stale *StaleRunFileError
	must(t, l.Release())
	if _, err := ReadRunFile(dir); !errors.As(err, &stale) || stale.PID != os.Getpid() {
		t.Errorf("not locked: %v", err)
	}
	// The process is dead.
	h := startHelper(t, "lock", filepath.Join(openTemp(t), "x"), 0)
	pid := h.cmd.Process.Pid
	h.kill()
	must(t, WriteRunFile(dir, RunFile{PID: pid}))
	if _, err := ReadRunFile(dir); !errors.As(err, &stale) || stale.PID != pid {
		t.Errorf("dead: %v", err)
	}
	must(t, RemoveRunFile(dir))
	_, err = os.Stat(path)
	must(t, err)
	must(t, WriteRunFile(dir, want))
	must(t, RemoveRunFile(dir))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not removed: %v", err)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := ReadRunFile(dir); err == nil || errors.As(err, &stale) {
		t.Errorf("nonsense: %v", err)
	}
	if err := WriteRunFile(dir, RunFile{}); err == nil {
		t.Error("no pid was accepted")
	}
}

func TestLeftoverFoldersAreRemoved(t *testing.T) {
	t.Parallel()
	tmp := openTemp(t)
	make := func(name string, age time.Duration) string {
		dir := filepath.Join(tmp, ephemeralPrefix+name)
		must(t, os.MkdirAll(filepath.Join(dir, "postgres", "data"), 0o700))
		when := time.Now().Add(-age)
		must(t, os.Chtimes(dir, when, when))
		return dir
	}
	abandoned, fresh, held := make("a", time.Hour), make("b", 0), make("c", 0)
	l, err := LockDir(held)
	must(t, err)
	defer l.Release()
	when := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(held, when, when))
	outside := filepath.Join(tmp, "outside")
	must(t, os.Mkdir(outside, 0o700))
	link := filepath.Join(tmp, ephemeralPrefix+"link")
	must(t, os.Symlink(outside, link))
	removeAbandoned(t.Context(), tmp, slog.New(slog.DiscardHandler))
	for path, want := range map[string]bool{abandoned: false, fresh: true, held: true, outside: true, link: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestReadSmallRefusesOddFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	for _, path := range []string{filepath.Join(dir, "link"), "/dev/zero", dir} {
		if _, err := readSmall(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}

// TestLockOfChildren: a program that inherits the lock of a folder keeps it until its children have ended, although the
// process that started it is gone.
func TestLockOfChildren(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	l, err := lockPart(t.Context(), base, syscall.SIGINT, log)
	must(t, err)
	p := program{path: "/bin/sh", args: []string{"-c", "sleep 0.5 >/dev/null 2>&1 & echo $!"}, acct: account{uid: uint32(os.Geteuid())}, lock: l}
	out, err := p.run(t.Context())
	must(t, err)
	must(t, l.Release())
	// The process id of the server is that of another process here.
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, other.Start())
	must(t, os.WriteFile(filepath.Join(base, serverName), fmt.Append(nil, other.Process.Pid), 0o600))
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var inUse *InUseError
	if _, err := lockPart(brief, base, syscall.SIGINT, log); !errors.As(err, &inUse) || inUse.PID != other.Process.Pid {
		t.Errorf("while the child was running: %v", err)
	}
	if l, err = lockPart(t.Context(), base, syscall.SIGINT, log); err != nil {
		t.Fatal(err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || !hasEnded(pid) {
		t.Errorf("the folder was locked while the child %q was running", out)
	}
	must(t, errors.Join(l.Release(), other.Process.Kill()))
	if err := other.Wait(); err.Error() != "signal: killed" {
		t.Errorf("the other process ended before: %v", err)
	}
}
