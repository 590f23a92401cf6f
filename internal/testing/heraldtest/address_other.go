//go:build !linux

package heraldtest

import "net"

// reserve finds a port that is free now. It does not keep the port reserved.
func reserve() (address string, release func(), err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), func() {}, l.Close()
}
