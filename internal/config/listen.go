package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/agentherald/herald/internal/secret"
)

// SettingsPath is where a running worker tells its settings (Public).
const SettingsPath = "/settings"

// CheckListen refuses an address that must not be listened on: off loopback a token is needed.
func CheckListen(listen string, token secret.Secret) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("HERALD_LISTEN %q is not host:port", listen)
	}
	if !IsLoopback(host) && token.IsZero() {
		return fmt.Errorf("HERALD_LISTEN %s is off loopback: set HERALD_API_TOKEN, or listen on 127.0.0.1", listen)
	}
	return nil
}

// IsLoopback tells whether only this machine reaches a host.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
