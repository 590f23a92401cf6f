package transport

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAddressAsFetchWritesIt checks that path and query are sent as `new URL(…)` of JavaScript writes them.
func TestAddressAsFetchWritesIt(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Target", r.RequestURI)
	}))
	defer srv.Close()
	for given, want := range map[string]string{
		"":                     "/",
		"?":                    "/",
		"/mcp?":                "/mcp",
		"/mcp?a='b'":           "/mcp?a=%27b%27",
		`/mcp?"ä <x>`:          "/mcp?%22%C3%A4%20%3Cx%3E",
		"/mcp?a=%zz&b=|{}[]/.": "/mcp?a=%zz&b=|{}[]/.",
		"/a/../mcp":            "/mcp",
		"/a/%2E%2e/./b/%2e":    "/b/",
		"/../..":               "/",
		"//a//../b%2Fc/":       "//a/b%2Fc/",
		"/a'b/..c":             "/a'b/..c",
	} {
		u, err := url.Parse(srv.URL + given)
		heraldtest.Must(t, err)
		res, err := (HTTPConfig{URL: u, Life: t.Context(), Now: time.Now, MaxAnswerBytes: 1, Base: http.DefaultTransport,
			Guard: &netguard.Guard{}}).newClient().Get(u.String())
		heraldtest.Must(t, err)
		heraldtest.Must(t, res.Body.Close())
		heraldtest.Equal(t, given, res.Header.Get("Target"), want)
	}
}

// TestOtherOrigin checks that the client of an endpoint, which adds secret headers, sends nothing to another origin. The
// transports never ask it to: they follow no redirect, and refuse an endpoint event that names another origin.
func TestOtherOrigin(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("X-Api-Key") }))
	defer other.Close()
	client := HTTPConfig{URL: &url.URL{Scheme: "https", Host: "agent.example"}, Headers: http.Header{"X-Api-Key": {"secret"}}, Life: t.Context(),
		Now: time.Now, MaxAnswerBytes: 1, Base: http.DefaultTransport, Guard: &netguard.Guard{}}.newClient()
	if res, err := client.Post(other.URL, "text/plain", http.NoBody); !errors.Is(err, errOtherOrigin) || len(asked) > 0 {
		t.Errorf("%v, %v, %d requests", res, err, len(asked))
	}
}
