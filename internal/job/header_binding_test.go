package job

import (
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestHeaderBindingOrigin: stored ciphertexts contain the origin that a job's headers are sealed for. The origin of a
// URL must never change, or stored rows cannot be opened.
func TestHeaderBindingOrigin(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://a.example/mcp?x#y":        "https://a.example",
		"HTTPS://A.Example:443/":           "https://A.Example:443", // host and port keep their spelling
		"https://A.Example:8443":           "https://A.Example:8443",
		"https://a.example:0443":           "https://a.example:0443",
		"http://a.example:80":              "http://a.example:80",
		"http://127.0.0.1:8080/x":          "http://127.0.0.1:8080",
		"https://a.example.":               "https://a.example.",
		"https://user:pw@a.example/":       "https://a.example",
		"https://[2001:DB8:0:0::1]:8443/x": "https://[2001:DB8:0:0::1]:8443",
		"https://[2001:db8::1]":            "https://[2001:db8::1]",
		"https://[fe80::1%25eth0]/":        "https://[fe80::1%eth0]",
		"https://bücher.example":           "https://bücher.example",
		"https://ａ.example":                "https://ａ.example",
		"stdio://x":                        "stdio://x",
		"":                                 "://", // a command has no URL
		"node":                             "://",
		"https:a.example":                  "https://",
		"//a.example":                      "://a.example",
		"https://a.example:port":           "",
		"https://a%20b.example/":           "",
		"https://a.example\x7f":            "",
	} {
		heraldtest.Equal(t, url, HeaderBinding(1, "0xaa", "7", url).Origin, want)
	}
}
