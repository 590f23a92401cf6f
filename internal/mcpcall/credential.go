package mcpcall

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/text"
)

// noCredential lists headers, in addition to refusedHeaders, that must not carry a token. An agent's registration,
// which anyone can write, may ask for any header.
var noCredential = []string{
	"Alt-Used", "Baggage", "Cache-Control", "Cookie", "Cookie2", "Date", "Forwarded", "From", "Max-Forwards",
	"Origin", "Pragma",
	"Range", "Referer", "Set-Cookie", "Traceparent", "Tracestate", "Trailers", "User-Agent", "Via", "Warning",
}

// noCredentialPrefixes are the prefixes of further headers that must not carry a token.
var noCredentialPrefixes = []string{"Access-Control-", "Content-", "If-", "Mcp-", "Proxy-", "Sec-", "X-Forwarded-"}

// CredentialHeader returns the canonical form of a header name that may carry a token. It returns an error if the name
// is not valid or if HTTP, MCP, proxies or browsers give the header another meaning.
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
