package mcpcall

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/text"
)

// noCredential are headers beside refusedHeaders that carry no token: a stranger's registration may ask for it in any
// of them.
var noCredential = []string{
	"Alt-Used", "Baggage", "Cache-Control", "Cookie", "Cookie2", "Date", "Forwarded", "From", "Max-Forwards",
	"Origin", "Pragma",
	"Range", "Referer", "Set-Cookie", "Traceparent", "Tracestate", "Trailers", "User-Agent", "Via", "Warning",
}

// noCredentialPrefixes are families of such headers.
var noCredentialPrefixes = []string{"Access-Control-", "Content-", "If-", "Mcp-", "Proxy-", "Sec-", "X-Forwarded-"}

// CredentialHeader returns the canonical name of a header that may carry a token, or an error that says why it may not:
// the name is none, or the header belongs to HTTP, to the protocol, to proxies or to browsers.
func CredentialHeader(name string) (string, error) {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !isHeaderName(name):
		return "", fmt.Errorf("%q is no name of an HTTP header", text.Excerpt(name, 60))
	case refusedHeaders[canonical], slices.Contains(noCredential, canonical),
		slices.ContainsFunc(noCredentialPrefixes, func(p string) bool { return strings.HasPrefix(canonical, p) }):
		return "", fmt.Errorf("the header %s cannot carry a token: it has another meaning", canonical)
	}
	return canonical, nil
}
