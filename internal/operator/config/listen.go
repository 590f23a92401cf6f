package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
)

// SettingsPath is the HTTP path at which a running worker serves its settings (see Config.Public).
const SettingsPath = "/settings"

// CheckListen returns an error if listen is not host:port, or if it is not on loopback and token is not set.
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

// IsLoopback reports whether host is localhost or a loopback address.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
