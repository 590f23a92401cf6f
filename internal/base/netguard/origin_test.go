package netguard

import (
	"net/url"
	"testing"
)

// TestOrigins checks the canonical origin of each URL, and whether a credential may be stored for it. Stored rows and
// Redis keys contain these origins.
func TestOrigins(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, origin, credential string }{
		{"https://a.example/mcp", "https://a.example", "https://a.example"},
		{"https://a.example/mcp?x#y", "https://a.example", "https://a.example"},
		{"HTTPS://A.Example.:443/other?x#y", "https://a.example", "https://a.example"},
		{"http://a.example", "http://a.example", "http://a.example"},
		{"http://a.example:80", "http://a.example", "http://a.example"},
		{"http://a.example:443", "http://a.example:443", "http://a.example:443"},
		{"http://127.0.0.1:8080/x", "http://127.0.0.1:8080", "http://127.0.0.1:8080"},
		{"https://a.example:0443", "https://a.example", "https://a.example"},
		{"HTTPS://A.EXAMPLE.:0443", "https://a.example", "https://a.example"},
		{"https://a.example:8443", "https://a.example:8443", "https://a.example:8443"},
		{"https://a.example:", "https://a.example", "https://a.example"},

		{"https://[2001:DB8::1]/", "https://[2001:db8::1]", "https://[2001:db8::1]"},
		{"https://[2001:db8:0:0::1]", "https://[2001:db8::1]", "https://[2001:db8::1]"},
		{"https://[2001:db8::1]:8443/?q=x#y?", "https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443"},
		{"https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]", ""}, // a zone is valid only on this machine

		{"https://bücher.example", "https://xn--bcher-kva.example", "https://xn--bcher-kva.example"},
		{"https://BÜCHER.example:8443/", "https://xn--bcher-kva.example:8443", "https://xn--bcher-kva.example:8443"},
		{"https://xn--bcher-kva.example", "https://xn--bcher-kva.example", "https://xn--bcher-kva.example"},
		{"https://аpple.example", "https://xn--pple-43d.example", "https://xn--pple-43d.example"}, // a Cyrillic letter
		{"https://ａｐｐｌｅ.example", "https://apple.example", "https://apple.example"},               // as it is dialed
		{"https://ａ.Example", "https://a.example", "https://a.example"},
		{"https://a。example。:8443", "https://a.example:8443", "https://a.example:8443"},
		{"https://a_b.example", "https://a_b.example", "https://a_b.example"},

		{"https://user:pw@[2001:DB8::1]/", "https://[2001:db8::1]", ""}, // a password is not part of an origin
		{"https://user:pw@b.example", "https://b.example", ""},
		{"https://@b.example", "https://b.example", ""},
		{"https://a.example@b.example", "https://b.example", ""},
		{"https://a..example", "https://a..example", ""}, // this name cannot be dialed
		{"https://a.example..", "https://a.example.", ""},
		{"ftp://a.example", "ftp://a.example", ""},
		{"//a.example", "://a.example", ""},
		{"https://", "https://", ""},
		{"https:a.example", "https://", ""},
		{"javascript:alert(1)", "javascript://", ""},
		{"", "://", ""},

		// These are no URLs.
		{"https://a.example\\@b.example", "", ""},
		{"https://a.example:port", "", ""},
		{"https://a.example\x7f", "", ""},
		{"https://a\u200b\u202e .example", "", ""},
	} {
		u, err := url.Parse(tt.url)
		if got := ""; err == nil {
			if got = string(OriginOf(u)); got != tt.origin {
				t.Errorf("the origin of %q is %q, want %q", tt.url, got, tt.origin)
			}
		} else if tt.origin != "" {
			t.Errorf("%q: %v", tt.url, err)
		}
		got, err := CredentialOriginOf(tt.url)
		if string(got) != tt.credential || (err != nil) != (tt.credential == "") {
			t.Errorf("the origin of %q for a credential is %q, %v; want %q", tt.url, got, err, tt.credential)
		}
	}
}

// FuzzCredentialOrigin: an origin is a URL whose origin is itself, and it contains only scheme, host and port.
func FuzzCredentialOrigin(f *testing.F) {
	for _, s := range []string{"https://a.example", "https://bücher.example:8443/x", "http://[::1%25eth0]:80", "https://ａ.example", "https://a.example.:0443"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := CredentialOriginOf(raw)
		if err != nil {
			return
		}
		again, err := CredentialOriginOf(string(got))
		if err != nil || again != got {
			t.Fatalf("%q is %q, and that is %q, %v", raw, got, again, err)
		}
		u, err := url.Parse(string(got))
		if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Hostname() == "" {
			t.Fatalf("%q is %q", raw, got)
		}
	})
}
