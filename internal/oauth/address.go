package oauth

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/netguard"
)

// parseEndpoint reads a URL that secrets may be sent to, or that answers for who somebody is: https, or http on this
// machine, with a host in ASCII. Errors continue "it …".
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

// parseIssuer reads an issuer: no query, either (RFC 8414 §2).
func parseIssuer(raw string) (*url.URL, error) {
	u, err := parseEndpoint(raw)
	if err == nil && (u.RawQuery != "" || u.ForceQuery) {
		return nil, errors.New("holds a query")
	}
	return u, err
}

// parseURL reads an absolute http or https URL of printable ASCII: what letters beyond it would be dialled as is not
// for us to guess.
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
	case err != nil || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http": // url.Parse lowers the scheme
		return nil, errors.New("is no http or https URL")
	case u.Hostname() == "" || strings.Contains(u.Host, "%"):
		return nil, errors.New("names no host")
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r > '~' }): // it was escaped
		return nil, errors.New("names a host that is not written in ASCII (xn--…)")
	case u.User != nil:
		return nil, errors.New("holds a user or password")
	}
	return u, nil
}

// isLoopback tells whether a host is this machine by its spelling alone. That it is dialled as such is the guard's
// affair.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// originOf is the origin of a URL that parseURL took.
func originOf(u *url.URL) string { return string(netguard.OriginOf(u)) }

// wellKnownURL puts a well-known name between the origin and the path, which is escaped (RFC 8615, RFC 8414 §3.1, RFC
// 9728 §3.1). Queries are left out.
func wellKnownURL(origin, name, path string) string {
	if path == "/" {
		path = ""
	}
	return origin + "/.well-known/" + name + path
}
