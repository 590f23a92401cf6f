package heraldtest

import (
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestAddress: the address refuses connections until a test listens at it, and again afterwards. A test can listen at
// it a second time.
func TestAddress(t *testing.T) {
	t.Parallel()
	address := Address(t)
	for range 2 {
		if _, err := net.DialTimeout("tcp", address, 10*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("nobody should listen at %s: %v", address, err)
		}
		l, err := net.Listen("tcp", address)
		Must(t, err)
		c, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		_ = l.Close()
	}
}

// TestAddressIsKept: the kernel never picks a reserved port for a listener or a connection. Linux picks from 28,000
// ports, so 4,000 picks would very likely hit one of a hundred ports that were not reserved.
func TestAddressIsKept(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the port is only found")
	}
	mine := map[string]bool{}
	for range 100 {
		mine[Address(t)] = true
	}
	if len(mine) != 100 {
		t.Fatalf("%d different addresses", len(mine))
	}
	target, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	defer target.Close()
	for range 2000 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		Must(t, err)
		c, err := net.Dial("tcp4", target.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		served, err := target.Accept()
		Must(t, err)
		for what, picked := range map[string]string{"a listener": l.Addr().String(), "a connection": c.LocalAddr().String()} {
			if mine[picked] {
				t.Fatalf("%s was given %s", what, picked)
			}
		}
		_, _, _ = l.Close(), c.Close(), served.Close()
	}
}
