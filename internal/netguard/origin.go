package netguard

import (
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/idna"
)

// Origin is scheme://host[:port] of an http or https URL, in the one spelling of RFC 6454 §6.2: the Host, no default port. Whoever spells it
// otherwise gets no limits of their own.
func Origin(u *url.URL) string {
	scheme, host := strings.ToLower(u.Scheme), Host(u)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := strings.TrimLeft(u.Port(), "0")
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host += ":" + port
	}
	return scheme + "://" + host
}

// Host is the host of a URL in one spelling, the one that is dialled: names in ASCII as net/http makes them (IDNA: full-width letters and
// ideographic dots are others' too), lower case, no dot at the end; addresses in their shortest form. A name that cannot be dialled is as it
// stands.
func Host(u *url.URL) string {
	host := u.Hostname()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil && strings.ContainsFunc(host, func(r rune) bool { return r >= 0x80 }) {
		host = ascii
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.String()
	}
	return host
}
