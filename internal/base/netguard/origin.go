package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/idna"
)

// Origin is scheme://host[:port] of an http or https URL in the canonical spelling of RFC 6454 §6.2: lower case, the
// host as returned by Host, no default port. Rate limits, breakers, bindings and same-origin checks use it, so that
// another spelling of a URL does not get limits of its own. It is part of keys in Redis. It does not imply that a
// secret may be sent there: see CredentialOrigin.
type Origin string

// OriginOf returns the origin of a URL, without user information. A URL without a scheme or host has an origin that
// equals no other.
func OriginOf(u *url.URL) Origin {
	scheme, host := strings.ToLower(u.Scheme), Host(u)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := strings.TrimLeft(u.Port(), "0")
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host += ":" + port
	}
	return Origin(scheme + "://" + host)
}

// CredentialOrigin is an Origin for which a secret may be stored and to which it may be sent. It comes from an http
// or https URL without user information, whose host is an address without a zone or a name that can be dialled. It
// has the spelling of Origin. Stored tokens are sealed for it, so the spelling must never change.
type CredentialOrigin string

// CredentialOriginOf returns the origin for which a token is stored. Error texts start with "it" and contain no part
// of the URL.
func CredentialOriginOf(rawURL string) (CredentialOrigin, error) {
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Hostname() == "" ||
		!strings.EqualFold(u.Scheme, "https") && !strings.EqualFold(u.Scheme, "http"):
		return "", errors.New("it must be an http or https URL")
	case u.User != nil:
		return "", errors.New("it holds a user or password")
	}
	host := Host(u)
	if _, err := netip.ParseAddr(host); (err != nil || strings.Contains(host, "%")) && !isHostName(host) {
		return "", errors.New("its host is no name that can be dialled")
	}
	return CredentialOrigin(OriginOf(u)), nil
}

// isHostName reports whether a host, as returned by Host, consists of labels of letters, digits, - and _, separated by
// single dots.
func isHostName(host string) bool {
	for _, label := range strings.Split(host, ".") {
		if label == "" || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Host returns the host of a URL in canonical spelling. Names are in lower-case ASCII, as net/http dials them: IDNA
// maps full-width letters and ideographic dots to ASCII. Addresses are in their shortest form. A dot at the end is
// dropped, although it is dialled: certificates and servers treat both as the same name. A name that cannot be
// dialled is only lower-cased.
func Host(u *url.URL) string {
	host := u.Hostname()
	if strings.ContainsFunc(host, func(r rune) bool { return r >= 0x80 }) {
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			host = ascii
		}
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.String()
	}
	return host
}

// EscapeQuery escapes the characters of a URL's query that fetch escapes too (WHATWG URL). net/http sends a query as it
// is, and many servers refuse one with a space or with characters outside ASCII.
func EscapeQuery(query string) string {
	var escaped strings.Builder
	for _, c := range []byte(query) {
		if c <= ' ' || c > '~' || strings.IndexByte(`"'<>#`, c) >= 0 {
			fmt.Fprintf(&escaped, "%%%02X", c)
		} else {
			escaped.WriteByte(c)
		}
	}
	return escaped.String()
}
