package main

import "syscall"

// ownGroup keeps the terminal's Ctrl-C from reaching a child before the worker has drained, and ends the child with us.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
