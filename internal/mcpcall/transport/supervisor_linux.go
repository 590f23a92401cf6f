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

// A command is run by a supervisor, which is this program once more under another name: the kernel gives it what the
// command's children leave behind (PR_SET_CHILD_SUBREAPER), also what made itself a daemon, and it ends all of it with
// the command and with the pool's process. The kernel's "kill it when its parent dies" reaches the command alone.
const (
	supervisorName = "herald-command" // argv[0]; then the command's path and its argv
	controlFD      = 3                // ends when the pool's process does, or wants everything killed
	statusFD       = 4                // the errno of starting the command, 0 when it runs, then how it ended
	superviseOften = 5 * time.Millisecond
)

const canSupervise = true

// RunSupervisor does not return in a process that is a supervisor. A program whose pools are supervised calls it first
// of all.
func RunSupervisor() {
	if len(os.Args) > 2 && os.Args[0] == supervisorName {
		os.Exit(superviseToEnd(os.Args[1], os.Args[2:]))
	}
}

// superviseCommand makes cmd start a supervisor that runs what cmd was made for.
func superviseCommand(cmd *exec.Cmd, control, status *os.File) {
	if cmd.Err != nil {
		return // no such program, says Start
	}
	cmd.Args = append([]string{supervisorName, cmd.Path}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{control, status}
	cmd.SysProcAttr.Pdeathsig = 0 // it sees the end of control, and has something to do then
}

// superviseToEnd runs the command to its end and leaves none of its descendants. It returns the exit status.
func superviseToEnd(path string, argv []string) int {
	runtime.LockOSThread() // the command dies with the thread that started it
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(statusFD)
	control, status := os.NewFile(controlFD, "control"), os.NewFile(statusFD, "status")
	// Those are for the command, which gets them too: it is in the same group.
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

// dropStreams leaves the pipes to the command alone, so that each ends when the command closes it.
func dropStreams() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0)
	}
}

// reapUntil takes the exits of all children until that of pid.
func reapUntil(pid int) (status syscall.WaitStatus) {
	for {
		switch got, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil || got == pid:
			return status
		}
	}
}

// describeEnd words how a process ended, as os.ProcessState does.
func describeEnd(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "signal: " + s.Signal().String()
	}
	return "exit status " + strconv.Itoa(s.ExitStatus())
}

// killDescendants ends all that came from this process. What lost its parent becomes a child of ours, so nothing is out
// of sight for longer than one look.
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

// listDescendants lists the live processes below root.
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
		// "pid (name) state ppid …"; the name may hold anything.
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
