package netguard

import (
	"net/url"
	"testing"
)

func TestOrigin(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://a.example/mcp":              "https://a.example",
		"HTTPS://A.Example.:443/other?x#y":   "https://a.example",
		"http://a.example":                   "http://a.example",
		"http://a.example:80":                "http://a.example",
		"https://a.example:0443":             "https://a.example",
		"http://a.example:443":               "http://a.example:443",
		"https://a.example:8443":             "https://a.example:8443",
		"https://user:pw@[2001:DB8::1]/":     "https://[2001:db8::1]",
		"https://[2001:db8:0:0::1]":          "https://[2001:db8::1]",
		"https://ａ.Example":                  "https://a.example",
		"https://a。example。:8443":            "https://a.example:8443",
		"https://bücher.example":             "https://xn--bcher-kva.example",
		"https://a_b.example":                "https://a_b.example",
		"https://[2001:db8::1]:8443/?q=x#y?": "https://[2001:db8::1]:8443",
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := Origin(u); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
