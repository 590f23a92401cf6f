package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
)

// guard wraps a route with the checks of host, origin, token, scope and form token.
func (s *Server) guard(route Route) http.Handler {
	var next http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, ok := s.identify(w, r, route)
		if !ok {
			return
		}
		if !caller.May(route.Scope) {
			if caller.Name == anonymous {
				askForToken(w, r, route, "this needs a token with the scope "+string(route.Scope)+
					": HERALD_API_TOKEN, or one of `worker api-token create`")
				return
			}
			refuseRequest(w, r, http.StatusForbidden, "forbidden", "this token lacks the scope "+string(route.Scope))
			return
		}
		r = r.WithContext(operator.WithCaller(r.Context(), caller))
		visitor := Visitor{Caller: caller, FormToken: s.makeFormToken(caller, time.Now()),
			Anonymous: caller.Name == anonymous,
			StillMay:  func(ctx context.Context) bool { return s.stillMay(ctx, r, route) }}
		if route.Form && !s.isFormTokenGood(w, r, caller) {
			refuseRequest(w, r, http.StatusForbidden, "stale_form",
				"this form is too old, or not of this page: go back, reload the page and try again")
			return
		}
		route.Handle(w, r, visitor)
	})
	next = refuseOtherOrigins(next)
	if !s.public {
		next = sameHost(next)
	}
	return closeUnread(next)
}

// closeUnread closes the connection of a request whose body has no declared length, unless the route deletes the header
// Connection. Otherwise net/http reads such a body before it sends a refusal. A client that waits for answers while it
// sends jobs would then not receive the refusal.
func closeUnread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// anonymous is the name of a caller without a token. It can read on loopback while HERALD_API_TOKEN is not set.
const anonymous = "anonymous"

// identify returns the caller of a request. If ok is false, it has already answered the request.
func (s *Server) identify(w http.ResponseWriter, r *http.Request, route Route) (c operator.Caller, ok bool) {
	token, given := readToken(r, route)
	switch {
	case !given && s.cfg.Token.IsZero():
		return operator.Caller{Name: anonymous, Scopes: []operator.Scope{operator.ScopeRead}}, true // on loopback only
	case !given:
		askForToken(w, r, route, "give HERALD_API_TOKEN, or a token of `worker api-token create`, as bearer token"+
			map[bool]string{false: ", or as password of any user"}[route.BearerOnly])
		return c, false
	}

	find := s.callers.find
	if route.InOutages {
		find = s.callers.findKnown
	}
	c, err := find(r.Context(), token)
	switch {
	case err == nil:
		return c, true
	case errors.Is(err, operator.ErrUnknownToken):
		askForToken(w, r, route, err.Error())
	default:
		s.cfg.Logger.Warn("looking up a token failed", logging.About(logging.Postgres), "error", err)
		refuseRequest(w, r, http.StatusServiceUnavailable, "unavailable",
			"the database is away, so the token cannot be checked: try again")
	}
	return c, false
}

// stillMay checks a stream's token again. The token counts as valid while Postgres does not answer.
func (s *Server) stillMay(ctx context.Context, r *http.Request, route Route) bool {
	token, given := readToken(r, route)
	if !given {
		return true // anonymous on loopback
	}
	c, err := s.callers.find(ctx, token)
	return err == nil && c.May(route.Scope) || err != nil && !errors.Is(err, operator.ErrUnknownToken)
}

// readToken returns the token of a request: a bearer token or, on pages, a Basic password with any user name. The API
// does not accept Basic, because browsers send it automatically, even for requests that another site's page caused.
func readToken(r *http.Request, route Route) (token secret.Secret, given bool) {
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return secret.New(strings.TrimSpace(rest)), true
	}
	if _, password, ok := r.BasicAuth(); ok && !route.BearerOnly {
		return secret.New(password), true
	}
	return token, false
}

func askForToken(w http.ResponseWriter, r *http.Request, route Route, why string) {
	ask := `Basic realm="herald", charset="UTF-8"`
	if route.BearerOnly {
		ask = `Bearer realm="herald"`
	}
	w.Header().Set("WWW-Authenticate", ask)
	refuseRequest(w, r, http.StatusUnauthorized, "unauthorized", why)
}

// isTrusted reports whether the request may see why a service does not answer.
func (s *Server) isTrusted(r *http.Request) bool {
	token, given := readToken(r, Route{})
	if !given {
		return s.cfg.Token.IsZero()
	}
	c, err := s.callers.findKnown(r.Context(), token)
	return err == nil && c.May(operator.ScopeRead)
}

// refuseOtherOrigins refuses changes that a page of another origin caused.
func refuseOtherOrigins(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuseRequest(w, r, http.StatusForbidden, "wrong_origin", "requests from pages of other origins are refused")
	}))
	return protection.Handler(next)
}

// sameHost refuses requests whose Host is not loopback or whose Origin is another host. This also stops DNS rebinding.
func sameHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !config.IsLoopback(parseHostname(r.Host)) {
			refuseRequest(w, r, http.StatusForbidden,
				"wrong_host", "this server listens on loopback: call it as 127.0.0.1 or localhost")
			return
		}
		if o := r.Header.Get("Origin"); o != "" {
			u, err := url.Parse(o)
			if err != nil || u.Host != r.Host {
				refuseRequest(w, r, http.StatusForbidden, "wrong_origin",
					"requests from pages of other origins are refused")
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

// typedWriter corrects the content types of the asynq web UI. It labels JSON and icons as text/plain, and with nosniff
// browsers would not use them.
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
	kinds := map[string]string{".svg": "image/svg+xml", ".js": "text/javascript; charset=utf-8",
		".css": "text/css; charset=utf-8", ".json": "application/json", ".map": "application/json"}
	kind := kinds[path.Ext(w.r.URL.Path)]
	if strings.HasPrefix(w.r.URL.Path, MonitorRoot+"/api/") {
		kind = "application/json"
	}
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
}
