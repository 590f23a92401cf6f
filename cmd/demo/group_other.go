//go:build !linux

package main

import "syscall"

// ownGroup puts a child into its own process group, so that the terminal's Ctrl-C does not reach it before the worker
// has drained.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
