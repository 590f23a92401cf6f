package transport

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
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

// FuzzNormalizeURL checks that an address is normalized to one that it keeps, of the same origin, without dot segments
// and with only the characters that `new URL(…)` of JavaScript keeps too.
func FuzzNormalizeURL(f *testing.F) {
	f.Add("/a/../mcp/%2E%2e/./b/%2e?a='b'")
	f.Add("//a//../b%2Fc/?\u00e4#x")
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.Parse("https://a.example:8443/" + target)
		if err != nil {
			return
		}
		u.Fragment, u.RawFragment = "", "" // a request has none
		normal := normalizeURL(u)
		again, err := url.Parse(normal.String())
		if err != nil || normalizeURL(again).String() != normal.String() || again.Host != u.Host || again.User != nil {
			t.Fatalf("%q became %q and that %q, %v", u, normal, normalizeURL(again), err)
		}
		for _, segment := range strings.Split(strings.ToLower(again.EscapedPath()), "/") {
			if s := strings.ReplaceAll(segment, "%2e", "."); s == "." || s == ".." {
				t.Fatalf("%q became %q", u, normal)
			}
		}
		if strings.ContainsAny(normal.RawQuery, `"'<>#`) || strings.ContainsFunc(normal.String(), func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("%q became %q", u, normal)
		}
	})
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
