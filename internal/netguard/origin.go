package netguard

import (
	"net/url"
	"strings"
)

// Origin is scheme://host[:port] of an http or https URL, in the one spelling of RFC 6454 §6.2: lower case, no default port, and no dot at
// the host's end: whoever spells it otherwise gets no limits of their own. Not for deciding where a secret may go, which goes by the
// letter.
func Origin(u *url.URL) string {
	scheme, host := strings.ToLower(u.Scheme), strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := strings.TrimLeft(u.Port(), "0")
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host += ":" + port
	}
	return scheme + "://" + host
}
