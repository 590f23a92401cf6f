package transport

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A command runs under a supervisor, which is this program started under another name. The kernel makes the supervisor
// the parent of orphaned descendants of the command (PR_SET_CHILD_SUBREAPER), including daemons. The supervisor kills
// all of them when the command or the pool's process ends. Pdeathsig alone would kill only the command.
const (
	supervisorName = "herald-command" // argv[0]; the command's path and its argv follow
	controlFD      = 3                // reaches its end when the pool's process ends or closes it to kill everything
	statusFD       = 4                // carries the errno of the start, 0 for success, and then how the command ended
	superviseOften = 5 * time.Millisecond
)

const canSupervise = true

// RunSupervisor runs the supervisor and does not return if this process was started as one. A program whose pools are
// supervised must call it first in main.
func RunSupervisor() {
	if len(os.Args) > 2 && os.Args[0] == supervisorName {
		os.Exit(superviseToEnd(os.Args[1], os.Args[2:]))
	}
}

// superviseCommand changes cmd so that it starts a supervisor, which runs the original command.
func superviseCommand(cmd *exec.Cmd, control, status *os.File) {
	if cmd.Err != nil {
		return // the program was not found; Start reports that
	}
	cmd.Args = append([]string{supervisorName, cmd.Path}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{control, status}
	cmd.SysProcAttr.Pdeathsig = 0 // the supervisor must survive to kill the descendants; it notices the end of control
}

// superviseToEnd runs the command until it ends, and kills all its descendants. It returns the exit status.
func superviseToEnd(path string, argv []string) int {
	runtime.LockOSThread() // Pdeathsig kills the command when the thread that started it ends
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(statusFD)
	control, status := os.NewFile(controlFD, "control"), os.NewFile(statusFD, "status")
	// These signals are for the command, which receives them too because it is in the same group.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)

	pid, err := 0, error(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	if err == nil {
		pid, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2},
			Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}})
	}
	if err != nil {
		errno, _ := err.(syscall.Errno)
		_, _ = fmt.Fprintln(status, int(max(errno, 1)))
		return 1
	}
	dropStreams()
	_, _ = fmt.Fprintln(status, 0)
	go func() {
		_, _ = io.Copy(io.Discard, control)
		killDescendants()
		os.Exit(1)
	}()
	ended := reapUntil(pid)
	killDescendants()
	_, _ = io.WriteString(status, describeEnd(ended))
	return ended.ExitStatus()
}

// dropStreams closes the supervisor's copies of the pipes, so that each pipe ends when the command closes it.
func dropStreams() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0)
	}
}

// reapUntil reaps children until it has reaped pid, and returns the status of pid.
func reapUntil(pid int) (status syscall.WaitStatus) {
	for {
		switch got, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil || got == pid:
			return status
		}
	}
}

// describeEnd describes how a process ended, in the words of os.ProcessState.
func describeEnd(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "signal: " + s.Signal().String()
	}
	return "exit status " + strconv.Itoa(s.ExitStatus())
}

// killDescendants kills all descendants of this process. A descendant whose parent ends becomes a child of this
// process, so that the next pass finds it.
func killDescendants() {
	deadline := time.Now().Add(killWait)
	for empty := 0; empty < 2 && time.Now().Before(deadline); {
		pids := listDescendants(os.Getpid())
		if len(pids) == 0 {
			empty++
			continue
		}
		empty = 0
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(superviseOften)
	}
}

// listDescendants lists the live descendants of root.
func listDescendants(root int) (found []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children, dead := map[int][]int{}, map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The format is "pid (name) state ppid …". The name may contain any character.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], pid)
		dead[pid] = fields[0] == "Z" || fields[0] == "X"
	}
	for next := children[root]; len(next) > 0; next = next[1:] {
		next = append(next, children[next[0]]...)
		if !dead[next[0]] {
			found = append(found, next[0])
		}
	}
	return found
}
