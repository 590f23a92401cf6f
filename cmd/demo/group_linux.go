package main

import "syscall"

// ownGroup puts a child into its own process group, so that the terminal's Ctrl-C does not reach it before the worker
// has drained. The kernel terminates the child when this process ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
