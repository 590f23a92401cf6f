package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/agentherald/herald/internal/config"
)

// authenticate asks for the token, when there is one: as a Basic password (any user name, for browsers) or as a
// bearer token.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.isAuthentic(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="herald", charset="UTF-8"`)
			answerError(w, http.StatusUnauthorized,
				"unauthorized", "give HERALD_API_TOKEN as bearer token, or as password of any user")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isAuthentic tells whether the request carries the token, or none is asked for. Both sides are hashed, so that the
// comparison tells nothing about the token's length either.
func (s *Server) isAuthentic(r *http.Request) bool {
	if s.cfg.Token.IsZero() {
		return true
	}
	_, given, ok := r.BasicAuth()
	if scheme, rest, found := strings.Cut(r.Header.Get("Authorization"), " "); !ok && found &&
		strings.EqualFold(scheme, "Bearer") {
		given, ok = strings.TrimSpace(rest), true
	}
	want, got := sha256.Sum256([]byte(s.cfg.Token.Reveal())), sha256.Sum256([]byte(given))
	return ok && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// sameHost refuses requests that a page of another site made the operator's browser send, also after DNS rebinding.
func sameHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !config.IsLoopback(parseHostname(r.Host)) {
			answerError(w, http.StatusForbidden,
				"wrong_host", "this server listens on loopback: call it as 127.0.0.1 or localhost")
			return
		}
		if o := r.Header.Get("Origin"); o != "" {
			u, err := url.Parse(o)
			if err != nil || u.Host != r.Host {
				answerError(w, http.StatusForbidden, "wrong_origin", "requests from pages of other origins are refused")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func parseHostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// typedWriter corrects the content types of the monitor: its API says text/plain for JSON, and its icons too, which
// nosniff would keep from being shown.
type typedWriter struct {
	http.ResponseWriter
	r *http.Request
}

func (w typedWriter) WriteHeader(status int) {
	w.fixContentType()
	w.ResponseWriter.WriteHeader(status)
}

func (w typedWriter) Write(b []byte) (int, error) {
	w.fixContentType()
	return w.ResponseWriter.Write(b)
}

func (w typedWriter) fixContentType() {
	h := w.Header()
	switch ext := path.Ext(w.r.URL.Path); {
	case strings.HasPrefix(w.r.URL.Path, MonitorRoot+"/api/"):
		h.Set("Content-Type", "application/json")
	case ext == ".svg":
		h.Set("Content-Type", "image/svg+xml")
	case ext == ".js":
		h.Set("Content-Type", "text/javascript; charset=utf-8")
	case ext == ".css":
		h.Set("Content-Type", "text/css; charset=utf-8")
	case ext == ".json" || ext == ".map":
		h.Set("Content-Type", "application/json")
	}
}
