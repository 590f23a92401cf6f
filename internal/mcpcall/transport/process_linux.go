package transport

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes: a group of its own, so that all of it can be ended, and the kernel ends the command if this
// process dies without a chance to.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the process has ended, without reaping it; false when it cannot tell.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
