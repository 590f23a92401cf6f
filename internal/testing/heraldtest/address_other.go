//go:build !linux

package heraldtest

import (
	"net"
	"testing"
)

// reserve finds a port that is free now. It does not keep the port reserved.
func reserve(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	Must(t, l.Close())
	return l.Addr().String()
}
