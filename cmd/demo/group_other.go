//go:build !linux

package main

import "syscall"

// ownGroup keeps the terminal's Ctrl-C from reaching a child before the worker has drained.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
