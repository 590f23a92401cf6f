//go:build unix && !linux

package transport

import (
	"os"
	"os/exec"
	"syscall"
)

// canSupervise: only Linux gives what a command's children leave behind to a process of ours.
const canSupervise = false

// RunSupervisor has nothing to do here.
func RunSupervisor() {}

func superviseCommand(*exec.Cmd, *os.File, *os.File) {}

// processAttributes: a group of its own, so that all of it can be ended.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit cannot wait without reaping here.
func awaitExit(int) bool { return false }
