package auth

import (
	"net/url"
	"strings"
)

// CredentialPath returns the path that a token is stored for, in escaped form: "/" if the URL has no path. Call it only
// for URLs that netguard.CredentialOriginOf accepts.
func CredentialPath(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.EscapedPath() == "" {
		return "/"
	}
	return u.EscapedPath()
}

// CoversPath reports whether a token stored for one path may be sent to another: the same path or one below it. A path
// that servers interpret differently, such as /a/..%2Fb, is covered only by "/", which means the whole origin.
func CoversPath(stored, path string) bool {
	return stored == "/" || path == stored || isPlainPath(path) &&
		strings.HasPrefix(path, strings.TrimSuffix(stored, "/")+"/")
}

// isPlainPath reports whether all servers interpret a path in the same way. No segment may be empty (except the last),
// consist of dots, or contain an encoded separator, including those of queries and fragments. Non-ASCII characters are
// rejected, because some servers map them to dots and slashes. Text after a semicolon is ignored when looking for dots,
// because some servers drop it as a parameter.
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

// isExactly reports whether a URL has exactly the path that a token is stored for, and no query.
func isExactly(rawURL, storedPath string) bool {
	u, err := url.Parse(rawURL)
	return err == nil && u.RawQuery == "" && !u.ForceQuery && CredentialPath(rawURL) == storedPath
}
