package agentauth

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/netguard"
)

// CredentialOrigin is the origin that a token is stored for, in the one spelling that is compared: lower case, no default port, names in
// ASCII as they are dialled (IDNA). What has no such origin is an error.
func CredentialOrigin(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Hostname() == "" || !strings.EqualFold(u.Scheme, "https") && !strings.EqualFold(u.Scheme, "http"):
		return "", errors.New("it must be an http or https URL")
	case u.User != nil:
		return "", errors.New("it holds a user or password")
	}
	host := netguard.Host(u)
	if _, err := netip.ParseAddr(host); (err != nil || strings.Contains(host, "%")) && !hostName(host) {
		return "", errNoHost
	}
	return netguard.Origin(u), nil
}

var errNoHost = errors.New("its host is no name that can be dialled")

// hostName: labels of letters, digits, - and _ with single dots between and perhaps one at the end.
func hostName(host string) bool {
	for _, label := range strings.Split(strings.TrimSuffix(host, "."), ".") {
		if label == "" || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// CredentialPath is the path that a token is stored for, as it is sent: "/" when the URL has none. Call it for what CredentialOrigin takes.
func CredentialPath(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.EscapedPath() == "" {
		return "/"
	}
	return u.EscapedPath()
}

// CoversPath tells whether a token that is stored for a path may go to another one: to that path itself and to what is below it. A path of
// which servers disagree where it leads is below nothing but the whole origin.
func CoversPath(stored, path string) bool {
	return stored == "/" || path == stored || plainPath(path) && strings.HasPrefix(path, strings.TrimSuffix(stored, "/")+"/")
}

// plainPath tells whether every server takes a path for the same: no segment is empty, made of dots, or holds an encoded separator, of
// queries and fragments too, or what is not ASCII, which some servers fold into dots and slashes. What follows a semicolon is a parameter to
// some servers, and dropped.
func plainPath(path string) bool {
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

// exactlyAt tells whether a URL is the very one that a token is stored for.
func exactlyAt(rawURL, storedPath string) bool {
	u, err := url.Parse(rawURL)
	return err == nil && u.RawQuery == "" && !u.ForceQuery && CredentialPath(rawURL) == storedPath
}
