package mcpcall

import (
	"strings"
	"testing"
)

func TestCredentialHeader(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"x-api-key": "X-Api-Key", "AUTHORIZATION": "Authorization", "api_key": "Api_key", "X-Mcp-Key": "X-Mcp-Key"} {
		if got, err := CredentialHeader(in); got != want || err != nil {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", " ", "X Key", "X-Key\r\nHost", "X-Kéy", "host", "Cookie", "COOKIE", "connection", "Keep-Alive", "te", "Trailer", "Transfer-Encoding",
		"Upgrade", "Proxy-Authorization", "Proxy-Anything", "mcp-session-id", "Mcp-Param-Region", "MCP-X", "Content-Length", "content-type", "Expect", "Accept", "Origin",
		"Referer", "X-Forwarded-For", "Sec-Fetch-Mode", "Idempotency-Key", "traceparent", "Last-Event-ID", "If-None-Match", strings.Repeat("x", 129)} {
		if got, err := CredentialHeader(in); err == nil {
			t.Errorf("%q is taken as %q", in, got)
		}
	}
}
