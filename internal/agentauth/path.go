package agentauth

import (
	"net/url"
	"strings"
)

// CredentialPath is the path that a token is stored for, as it is sent: "/" when the URL has none. Call it for what
// netguard.CredentialOriginOf takes.
func CredentialPath(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.EscapedPath() == "" {
		return "/"
	}
	return u.EscapedPath()
}

// CoversPath tells whether a token that is stored for a path may go to another one: to that path itself and to what is
// below it. A path that servers read differently, as /a/..%2Fb, is below no stored path but "/", the whole origin.
func CoversPath(stored, path string) bool {
	return stored == "/" || path == stored || isPlainPath(path) &&
		strings.HasPrefix(path, strings.TrimSuffix(stored, "/")+"/")
}

// isPlainPath tells whether every server takes a path for the same: no segment is empty, made of dots, or holds an
// encoded separator, of queries and fragments too, or what is not ASCII, which some servers fold into dots and slashes.
// What follows a semicolon is a parameter to some servers, and dropped.
func isPlainPath(path string) bool {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		if s == "" && i == len(segments)-1 {
			return true
		}
		text, err := url.PathUnescape(s)
		name, _, _ := strings.Cut(text, ";")
		if err != nil || strings.Trim(name, ". ") == "" || strings.ContainsAny(text, `/\%#?`) ||
			strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return true
}

// isExactly tells whether a URL is the very one that a token is stored for.
func isExactly(rawURL, storedPath string) bool {
	u, err := url.Parse(rawURL)
	return err == nil && u.RawQuery == "" && !u.ForceQuery && CredentialPath(rawURL) == storedPath
}
