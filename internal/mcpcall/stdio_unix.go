//go:build unix && !linux

package mcpcall

import "syscall"

// processAttributes: a group of its own, so that all of it can be ended.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit cannot wait without reaping here.
func awaitExit(int) bool { return false }
