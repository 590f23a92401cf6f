package mcpcall

import (
	"net/url"
	"testing"
)

// TestOrigin: what a connection takes for its own origin.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://a.example/mcp?x#y":       "https://a.example:443",
		"HTTPS://A.Example:443/":          "https://a.example:443",
		"https://A.Example:8443":          "https://a.example:8443",
		"https://a.example:0443":          "https://a.example:0443",
		"https://a.example.":              "https://a.example.:443",
		"https://user:pw@a.example/":      "https://a.example:443",
		"https://[2001:DB8:0:0::1]:8443/": "https://2001:db8:0:0::1:8443",
		"https://bücher.example":          "https://bücher.example:443",
		"http://a.example:80":             "http://a.example:80",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := origin(u); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}
