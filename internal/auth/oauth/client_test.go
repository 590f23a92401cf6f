package oauth

import (
	"net/http"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestNew checks that New refuses an HTTP client without the guard's transport, which could connect to any address.
func TestNew(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"nothing": {}, "the default transport": {HTTP: &http.Client{}}} {
		_, err := New(cfg)
		heraldtest.Fails(t, name, err)
	}
	given := &http.Client{Transport: http.NewFileTransport(http.Dir(t.TempDir())), Timeout: 1}
	c, err := New(Config{HTTP: given})
	if err != nil || c.Now == nil || c.Timeout <= 0 || c.HTTP == given {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"localhost": true, "LOCALHOST": true, "127.0.0.1": true, "127.8.8.8": true, "::1": true, "::ffff:127.0.0.1": true,
		"localhost.": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "128.0.0.1": false, "0.0.0.0": false, "": false, "2130706433": false, "0x7f.1": false} {
		heraldtest.Equal(t, host, isLoopback(host), want)
	}
}

// TestOrigin checks that different spellings of one origin are equal, and that similar origins differ.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://A.example:443/x": "https://a.example", "HTTPS://a.example": "https://a.example", "http://a.example:443": "http://a.example:443",
		"https://a.example.": "https://a.example", "https://[::1]:8443/": "https://[::1]:8443", "https://a.example:0443": "https://a.example",
		"https://\u212a.example": "", "https://ex\u00e4mple.com": "", "https://a.example\\@b.example": "", "https://u@a.example": "", "//a.example": "", "https:a.example": "",
		"https://%61.example": "", "https://%E2%84%AA.example": "", "https://ex%C3%A4mple.com": "", "https://[fe80::1%25lo]": "", "https://a.example/#": "", "https://a.example/ x": "", "javascript:1": "",
	} {
		u, err := parseURL(raw)
		if got := ""; err == nil {
			if got = originOf(u); got != want {
				t.Errorf("%q: %q", raw, got)
			}
		} else if want != "" {
			t.Errorf("%q: %v", raw, err)
		}
	}
}
