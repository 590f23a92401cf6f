package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// mainVariable makes this test binary run main.
const mainVariable = "WORKER_TEST_MAIN"

// TestStopsInOrder checks that a worker stops as after SIGTERM when its terminal is closed. It also does so when Ctrl-C
// ends the reader of its log first, as in `worker 2>&1 | tee worker.log`, and if nothing reads its log. Otherwise running
// calls would be repeated.
func TestStopsInOrder(t *testing.T) {
	t.Parallel()
	// A worker that nohup starts ignores SIGHUP, and so would one of a test that nohup started.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	env := []string{"DATABASE_URL=" + heraldtest.Postgres(t, postgres.Migrate), "REDIS_URL=" + heraldtest.Redis(t),
		"HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_LISTEN=127.0.0.1:0", mainVariable + "=1"}
	for name, stop := range map[string]func(log *os.File, worker *os.Process) error{
		"the log's reader ends": func(log *os.File, worker *os.Process) error {
			if err := log.Close(); err != nil {
				return err
			}
			return worker.Signal(os.Interrupt)
		},
		"nothing reads the log": func(log *os.File, worker *os.Process) error {
			full, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", log.Fd()), os.O_WRONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer func() { _ = full.Close() }()
			_ = full.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err = full.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("the pipe is not full: %w", err)
			}
			return worker.Signal(os.Interrupt)
		},
		"the terminal is closed": func(_ *os.File, worker *os.Process) error {
			err := worker.Signal(syscall.SIGHUP)
			_ = worker.Signal(syscall.SIGHUP) // fails if the worker has ended
			return err
		},
	} {
		binary, err := os.Executable()
		heraldtest.Must(t, err)
		cmd := exec.CommandContext(heraldtest.Within(t, time.Minute), binary)
		cmd.Env = env
		log, stderr, err := os.Pipe()
		heraldtest.Must(t, err)
		cmd.Stderr = stderr
		heraldtest.Must(t, cmd.Start())
		_ = stderr.Close()
		lines := bufio.NewReader(log)
		for line := ""; !strings.Contains(line, "msg=delivering"); {
			line, err = lines.ReadString('\n')
			heraldtest.Must(t, err)
		}
		heraldtest.Must(t, stop(log, cmd.Process))
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: the worker ended with %v", name, err)
		}
		_ = log.Close()
	}
}

// TestReplayOutlivesItsReader checks that a replay ends in order if the reader of its output ends first, as in
// `worker delivery replay … | head`.
func TestReplayOutlivesItsReader(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	binary, err := os.Executable()
	heraldtest.Must(t, err)
	cmd := exec.CommandContext(heraldtest.Within(t, time.Minute), binary, "delivery", "replay", d.ended(42, delivered).String())
	cmd.Env = append(d.env, mainVariable+"=1", "HERALD_DATA="+t.TempDir())
	reader, stdout, err := os.Pipe()
	heraldtest.Must(t, err)
	heraldtest.Must(t, reader.Close())
	cmd.Stdout = stdout
	_ = cmd.Run()
	_ = stdout.Close()
	heraldtest.Equal(t, "the exit code", cmd.ProcessState.ExitCode(), exitLeft)
	heraldtest.Equal(t, "the audit", d.audits()[0].State, "done")
}
