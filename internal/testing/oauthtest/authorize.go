package oauthtest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	serverMetadata   = "/.well-known/oauth-authorization-server"
	openIDMetadata   = "/.well-known/openid-configuration"
	resourceMetadata = "/.well-known/oauth-protected-resource"

	authorizePath = "/authorize"
	tokenPath     = "/token"
	registerPath  = "/register"
	revokePath    = "/revoke"

	clickTime = 10 * time.Second
)

// serveAuthorization handles the requests of the authorization server.
func (s *Server) serveAuthorization(w http.ResponseWriter, r *http.Request, form url.Values) {
	at := serverMetadata + s.o.IssuerPath
	if s.o.OpenID {
		at = s.o.IssuerPath + openIDMetadata
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == at && !s.o.LegacyEndpoints:
		writeJSON(w, http.StatusOK, s.describeServer())
	case r.Method == http.MethodGet && r.URL.Path == s.serverPath(authorizePath):
		s.serveAuthorize(w, r, form)
	case r.Method == http.MethodPost && r.URL.Path == s.serverPath(tokenPath):
		s.serveForm(w, r, form, s.grantToken)
	case r.Method == http.MethodPost && r.URL.Path == s.serverPath(registerPath) && !s.o.NoRegistration:
		out, err := s.register(r)
		writeAnswer(w, http.StatusCreated, out, err)
	case r.Method == http.MethodPost && r.URL.Path == s.serverPath(revokePath) && !s.o.NoRevocation && !s.o.LegacyEndpoints:
		s.serveForm(w, r, form, s.revokeToken)
	default:
		http.NotFound(w, r)
	}
}

// describeServer returns the document of RFC 8414 §2.
func (s *Server) describeServer() map[string]any {
	m := map[string]any{
		"issuer":                                           s.Issuer,
		"authorization_endpoint":                           s.Issuer + authorizePath,
		"token_endpoint":                                   s.Issuer + tokenPath,
		"response_types_supported":                         []string{"code"},
		"grant_types_supported":                            []string{"authorization_code", "refresh_token", "client_credentials"},
		"token_endpoint_auth_methods_supported":            s.o.Methods,
		"token_endpoint_auth_signing_alg_values_supported": algorithms,
		"code_challenge_methods_supported":                 []string{"S256"},
	}
	if s.o.Scopes != nil {
		m["scopes_supported"] = s.o.Scopes
	}
	if !s.o.NoRegistration {
		m["registration_endpoint"] = s.Issuer + registerPath
	}
	if !s.o.NoRevocation {
		m["revocation_endpoint"], m["revocation_endpoint_auth_methods_supported"] = s.Issuer+revokePath, s.o.Methods
	}
	if !s.o.NoIss {
		m["authorization_response_iss_parameter_supported"] = true
	}
	if s.o.ClientIDMetadata {
		m["client_id_metadata_document_supported"] = true
	}
	return m
}

// register implements RFC 7591.
func (s *Server) register(r *http.Request) (map[string]any, error) {
	var in struct {
		Redirects   []string `json:"redirect_uris"`
		Method      string   `json:"token_endpoint_auth_method"`
		Application string   `json:"application_type"`
	}
	err := json.NewDecoder(r.Body).Decode(&in)
	method := cmp.Or(in.Method, MethodBasic) // RFC 7591 §2
	switch {
	case err != nil || len(in.Redirects) == 0:
		return nil, refusal{"invalid_redirect_uri", "registration: no redirect_uris"}
	case in.Application != "native" && isLoopback(in.Redirects[0]):
		return nil, refusal{"invalid_client_metadata", "registration: a redirect to loopback is application_type native"}
	case !slices.Contains(s.o.Methods, method):
		return nil, refusal{"invalid_client_metadata", "registration: " + method + " is not supported"}
	}
	id, c := s.randomText("client-"), &client{method: method, redirects: in.Redirects}
	out := map[string]any{"client_id": id, "redirect_uris": in.Redirects, "token_endpoint_auth_method": method, "application_type": in.Application}
	if method == MethodBasic || method == MethodPost {
		c.secret = s.randomText("secret-")
		out["client_secret"], out["client_secret_expires_at"] = c.secret, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[id] = c
	return out, nil
}

// serveAuthorize implements the authorization page. It assumes that the person agrees.
func (s *Server) serveAuthorize(w http.ResponseWriter, r *http.Request, q url.Values) {
	id, redirect := q.Get("client_id"), q.Get("redirect_uri")
	s.mu.Lock()
	c := s.clients[id]
	s.mu.Unlock()
	if c == nil && s.o.ClientIDMetadata && strings.HasPrefix(id, "https://") {
		c = &client{}
	}
	// An invalid client or redirect is reported on this page and never to the redirect (RFC 6749 §4.1.2.1).
	if c == nil || !c.takesRedirect(redirect) {
		http.Error(w, fmt.Sprintf("unknown client %q or redirect %q", id, redirect), http.StatusBadRequest)
		return
	}
	back := url.Values{}
	if state := q.Get("state"); state != "" {
		back.Set("state", state)
	}
	if !s.o.NoIss {
		back.Set("iss", s.Issuer)
	}
	if refused := s.checkRequest(q); refused.code != "" {
		back.Set("error", refused.code)
		back.Set("error_description", refused.description)
	} else {
		if q.Get("prompt") != "consent" { // OpenID Connect Core §11
			q.Set("scope", strings.Join(slices.DeleteFunc(strings.Fields(q.Get("scope")),
				func(one string) bool { return one == "offline_access" }), " "))
		}
		back.Set("code", s.newCode(id, redirect, q))
	}
	to, err := url.Parse(redirect)
	if err != nil {
		http.Error(w, "redirect", http.StatusBadRequest)
		return
	}
	query := to.Query()
	for name, values := range back {
		query[name] = values
	}
	to.RawQuery = query.Encode()
	http.Redirect(w, r, to.String(), http.StatusFound)
}

// checkRequest returns the refusal of an authorization request; an empty code means that it is valid.
func (s *Server) checkRequest(q url.Values) refusal {
	switch {
	case q.Get("response_type") != "code":
		return refusal{"unsupported_response_type", "response_type is not code"}
	case q.Get("state") == "":
		return refusal{"invalid_request", "no state"}
	case q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43:
		return refusal{"invalid_request", "no code_challenge with S256"}
	case !s.isResource(q["resource"]):
		return refusal{"invalid_target", fmt.Sprintf("resource %q is not %s", q["resource"], s.AgentURL)}
	case !s.knowsScopes(q.Get("scope")):
		return refusal{"invalid_scope", fmt.Sprintf("scope %q", q.Get("scope"))}
	}
	return refusal{}
}

// takesRedirect reports whether redirect is registered for c, or is on loopback if c registered none. The port of a
// loopback redirect does not matter (RFC 8252 §7.3).
func (c *client) takesRedirect(redirect string) bool {
	if c.redirects == nil {
		return isLoopback(redirect)
	}
	return slices.ContainsFunc(c.redirects, func(r string) bool {
		return r == redirect || isLoopback(r) && isLoopback(redirect) && withoutPort(r) == withoutPort(redirect)
	})
}

func isLoopback(redirect string) bool {
	u, err := url.Parse(redirect)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func withoutPort(redirect string) string {
	u, err := url.Parse(redirect)
	if err != nil {
		return redirect
	}
	return u.Hostname() + u.EscapedPath() + "?" + u.RawQuery
}

// Approve simulates a person's consent. It opens the URL and returns the query of the redirect, with a code or an
// error. It does not follow the redirect.
func (s *Server) Approve(authURL string) url.Values {
	s.t.Helper()
	return s.openLogin(authURL).Query()
}

// Visit is like Approve, but follows the redirect as a browser does and returns the body of the page.
func (s *Server) Visit(authURL string) string {
	s.t.Helper()
	_, body := s.getPage(s.openLogin(authURL).String())
	return body
}

// openLogin returns the address to which the authorization endpoint redirects. After a failure of the test, it is empty.
func (s *Server) openLogin(authURL string) *url.URL {
	s.t.Helper()
	res, body := s.getPage(authURL)
	to, err := res.Location()
	if err != nil {
		s.t.Errorf("the authorization endpoint answered %d and no redirect: %s", res.StatusCode, body)
		return &url.URL{}
	}
	return to
}

// getPage requests a page and does not follow a redirect.
func (s *Server) getPage(at string) (*http.Response, string) {
	s.t.Helper()
	browser := http.Client{Timeout: clickTime, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := browser.Get(at)
	if err != nil {
		s.t.Error(err)
		return &http.Response{}, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		s.t.Error(err)
	}
	return res, string(body)
}

// isResource reports whether the resource parameter is exactly the agent's URL. An agent of 2025-03-26 requires none.
func (s *Server) isResource(named []string) bool {
	if len(named) == 0 {
		return s.o.Legacy
	}
	return len(named) == 1 && named[0] == s.AgentURL
}

// knowsScopes reports whether all scopes are supported. Without configured scopes, all are.
func (s *Server) knowsScopes(scope string) bool {
	if s.o.Scopes == nil {
		return true
	}
	for _, one := range strings.Fields(scope) {
		if !slices.Contains(s.o.Scopes, one) {
			return false
		}
	}
	return true
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// writeAnswer writes out with the status, nothing if it is nil, or err if it is a refusal.
func writeAnswer(w http.ResponseWriter, status int, out map[string]any, err error) {
	var refused refusal
	switch {
	case errors.As(err, &refused):
		status = http.StatusBadRequest
		if refused.code == "invalid_client" {
			status = http.StatusUnauthorized
			w.Header().Set("WWW-Authenticate", `Basic realm="token"`)
		}
		writeJSON(w, status, map[string]string{"error": refused.code, "error_description": refused.description})
	case out != nil:
		writeJSON(w, status, out)
	}
}
