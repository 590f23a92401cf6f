package oauth

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/base/netguard"
)

// parseEndpoint parses a URL that receives secrets or identifies an issuer: https, or http on loopback, with a host in
// ASCII. Its errors are predicates ("is not https").
func parseEndpoint(raw string) (*url.URL, error) {
	u, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" && !isLoopback(u.Hostname()) {
		return nil, errors.New("is not https")
	}
	return u, nil
}

// parseIssuer parses an issuer. In addition to the rules of parseEndpoint, an issuer has no query (RFC 8414 §2).
func parseIssuer(raw string) (*url.URL, error) {
	u, err := parseEndpoint(raw)
	if err == nil && (u.RawQuery != "" || u.ForceQuery) {
		return nil, errors.New("holds a query")
	}
	return u, err
}

// parseURL parses an absolute http or https URL of printable ASCII. It rejects other characters, because their
// conversion for dialling is ambiguous. Its errors are predicates.
func parseURL(raw string) (*url.URL, error) {
	switch {
	case raw == "":
		return nil, errors.New("is empty")
	case len(raw) > maxURL:
		return nil, errors.New("is too long")
	case strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }):
		return nil, errors.New("holds characters that a URL cannot hold")
	case strings.Contains(raw, "#"):
		return nil, errors.New("holds a fragment")
	}
	u, err := url.Parse(raw)
	switch {
	// url.Parse converts the scheme to lower case.
	case err != nil || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("is no http or https URL")
	case u.Hostname() == "" || strings.Contains(u.Host, "%"):
		return nil, errors.New("names no host")
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r > '~' }): // it was percent-encoded
		return nil, errors.New("names a host that is not written in ASCII (xn--…)")
	case u.User != nil:
		return nil, errors.New("holds a user or password")
	}
	return u, nil
}

// isLoopback reports whether the spelling of host denotes this machine. The guard checks the address that is dialled.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// originOf returns the origin of a URL that parseURL returned.
func originOf(u *url.URL) string { return string(netguard.OriginOf(u)) }

// wellKnownURL inserts a well-known name between the origin and the escaped path (RFC 8615, RFC 8414 §3.1, RFC 9728
// §3.1). The result has no query.
func wellKnownURL(origin, name, path string) string {
	if path == "/" {
		path = ""
	}
	return origin + "/.well-known/" + name + path
}
