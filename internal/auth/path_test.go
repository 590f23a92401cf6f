package auth

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

// tricks are paths that some servers resolve to a path outside /victim or to an unexpected path, although they seem to
// lie below it.
var tricks = []string{"/victim/../evil", "/victim/%2e%2e/evil", "/victim/.%2E/evil", "/victim/%2E./evil", "/victim/..%2fevil", "/victim%2F..%2Fevil",
	"/victim/..%5cevil", "/victim/%252e%252e/evil", "/victim/..;/evil", "/victim/..%3bx=y/evil", "/victim/;/evil", "/victim//evil", "/victim/./evil",
	"/victim/.../evil", "/victim/..%20/evil", "/victim/%c0%ae%c0%ae/evil", "/victim/%00/evil", "/victim/..%23/evil",
	"/victim/..%3f/evil", "/victim/..%3Fx=/evil", "/victim/%ef%bc%8e%ef%bc%8e/evil", "/victim/..%ef%bc%8fevil", "/./victim/x", "//victim/x", "/x/../victim"}

// FuzzCoversPath checks that a path that CoversPath accepts stays below the stored path, in every way that a server may
// read it.
func FuzzCoversPath(f *testing.F) {
	for _, trick := range tricks {
		f.Add(trick)
	}
	f.Add("/victim/mcp")
	f.Fuzz(func(t *testing.T, raw string) {
		const stored = "/victim"
		if !CoversPath(stored, raw) || raw == stored {
			return
		}
		for read := raw; ; {
			noParameters := ""
			for _, s := range strings.Split(read, "/")[1:] {
				name, _, _ := strings.Cut(s, ";")
				noParameters += "/" + name
			}
			for _, p := range []string{read, noParameters, strings.ReplaceAll(read, `\`, "/")} {
				if clean := path.Clean(p); clean != stored && !strings.HasPrefix(clean, stored+"/") {
					t.Fatalf("%q is read as %q", raw, clean)
				}
			}
			next, err := url.PathUnescape(read)
			if err != nil || next == read {
				return
			}
			read = next
		}
	})
}
