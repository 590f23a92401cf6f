package mcpcall

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
)

// noCredential contains further headers, besides refusedHeaders, that must not contain a token. Without this list, an
// agent's registration document, which anyone can write, could request a token in any header.
var noCredential = []string{
	"Alt-Used", "Baggage", "Cache-Control", "Cookie", "Cookie2", "Date", "Forwarded", "From", "Max-Forwards",
	"Origin", "Pragma",
	"Range", "Referer", "Set-Cookie", "Traceparent", "Tracestate", "Trailers", "User-Agent", "Via", "Warning",
}

// noCredentialPrefixes contains the prefixes of further headers that must not contain a token.
var noCredentialPrefixes = []string{"Access-Control-", "Content-", "If-", "Mcp-", "Proxy-", "Sec-", "X-Forwarded-"}

// CredentialHeader returns the canonical form of the name of a header in which a token may be sent. It returns an error
// if the name is invalid, or if HTTP, MCP, proxies or browsers use the header for another purpose.
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
