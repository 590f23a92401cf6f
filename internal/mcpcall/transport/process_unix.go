//go:build unix && !linux

package transport

import (
	"os"
	"os/exec"
	"syscall"
)

// canSupervise is false: only on Linux can a process become the parent of a command's orphaned descendants.
const canSupervise = false

// RunSupervisor does nothing on this system.
func RunSupervisor() {}

func superviseCommand(*exec.Cmd, *os.File, *os.File) {}

// processAttributes puts the command into a process group of its own, so that the whole group can be killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit returns false: waiting without reaping is not supported here.
func awaitExit(int) bool { return false }
