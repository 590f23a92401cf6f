package heraldtest

import (
	"fmt"
	"syscall"
	"testing"
)

// reserve binds a socket that never listens. The kernel does not choose its port for other sockets and refuses
// connections to it. A program that names the port and sets SO_REUSEADDR, as package net does, can listen on it.
func reserve(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	Must(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	Must(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	Must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	Must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}
