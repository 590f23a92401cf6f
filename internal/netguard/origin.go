package netguard

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/idna"
)

// Origin is scheme://host[:port] of an http or https URL in the one spelling of RFC 6454 §6.2: lower case, the host
// as Host spells it, no default port. Rate limits, breakers, bindings and "the same origin" go by it: whoever spells
// a URL otherwise gets no limits of their own. It is in keys in Redis. It does not say that a secret may go there:
// see CredentialOrigin.
type Origin string

// OriginOf is the origin of a URL, user information aside. A URL without a scheme or host has one that equals no
// other's.
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

// CredentialOrigin is an Origin that a secret may be stored for and sent to: that of an http or https URL without
// user information, whose host is an address without a zone or a name that can be dialled. It is spelled as Origin
// is. Stored tokens are sealed for it, so the spelling must never change.
type CredentialOrigin string

// CredentialOriginOf is the origin that a token is stored for. Errors continue "it …" or stand alone, and hold
// nothing of the URL.
func CredentialOriginOf(rawURL string) (CredentialOrigin, error) {
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Hostname() == "" || !strings.EqualFold(u.Scheme, "https") && !strings.EqualFold(u.Scheme, "http"):
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

// isHostName tells whether a host is made of labels of letters, digits, - and _ with single dots between, and perhaps
// one at the end.
func isHostName(host string) bool {
	for _, label := range strings.Split(strings.TrimSuffix(host, "."), ".") {
		if label == "" || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Host is the host of a URL in one spelling: names in ASCII as net/http dials them (IDNA: full-width letters and
// ideographic dots are others' too), lower case; addresses in their shortest form. A dot at the end is dropped,
// though it is dialled: certificates and servers take both for the same name. A name that cannot be dialled is as it
// stands.
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
