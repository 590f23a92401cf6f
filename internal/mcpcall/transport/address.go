package transport

import (
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/base/netguard"
)

// normalizeURL returns u in the form in which fetch writes a URL (WHATWG URL): without dot segments, without a question
// mark at the end, and with more characters of the query escaped. An agent whose framework is based on fetch sees its
// address only in this form, so that it cannot verify a signature of another form.
func normalizeURL(u *url.URL) *url.URL {
	normal := *u
	normal.ForceQuery, normal.RawQuery = false, netguard.EscapeQuery(u.RawQuery)
	normal.RawPath = removeDotSegments(u.EscapedPath())
	normal.Path, _ = url.PathUnescape(normal.RawPath) // EscapedPath is a valid encoding
	return &normal
}

func removeDotSegments(path string) string {
	segments := strings.Split(path, "/")
	kept := segments[:1] // the empty text before the first slash
	for i, s := range segments[1:] {
		switch strings.ReplaceAll(strings.ToLower(s), "%2e", ".") {
		case "..":
			kept = kept[:max(1, len(kept)-1)]
		case ".":
		default:
			kept = append(kept, s)
			continue
		}
		if i == len(segments)-2 { // the last segment: the path names a folder
			kept = append(kept, "")
		}
	}
	return strings.Join(kept, "/")
}
