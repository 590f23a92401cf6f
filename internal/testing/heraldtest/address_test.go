package heraldtest

import (
	"errors"
	"net"
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
