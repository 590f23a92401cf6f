package heraldtest

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"
)

// reserve binds a socket that never listens. The kernel does not choose its port for other sockets and refuses
// connections to it. A program that names the port and sets SO_REUSEADDR, as package net does, can listen on it.
func reserve() (address string, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(fd)
		}
	}()
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", nil, os.NewSyscallError("setsockopt", err)
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: loopback.As4()}); err != nil {
		return "", nil, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", nil, os.NewSyscallError("getsockname", err)
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return "", nil, fmt.Errorf("bound to a %T", name)
	}
	return netip.AddrPortFrom(loopback, uint16(bound.Port)).String(), func() { _ = syscall.Close(fd) }, nil
}
