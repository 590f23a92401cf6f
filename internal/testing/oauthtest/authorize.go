package oauthtest

import (
	"context"
	"encoding/json"
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
		s.serveToken(w, r, form)
	case r.Method == http.MethodPost && r.URL.Path == s.serverPath(registerPath) && !s.o.NoRegistration:
		s.serveRegister(w, r)
	case r.Method == http.MethodPost && r.URL.Path == s.serverPath(revokePath) && !s.o.NoRevocation && !s.o.LegacyEndpoints:
		s.serveRevoke(w, r, form)
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

// serveRegister implements RFC 7591.
func (s *Server) serveRegister(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Redirects   []string `json:"redirect_uris"`
		Method      string   `json:"token_endpoint_auth_method"`
		Application string   `json:"application_type"`
		Scope       string   `json:"scope"`
	}
	err := json.NewDecoder(r.Body).Decode(&in)
	switch {
	case err != nil || len(in.Redirects) == 0:
		writeError(w, http.StatusBadRequest, "invalid_redirect_uri", "registration: no redirect_uris")
		return
	case in.Application != "native" && isLoopback(in.Redirects[0]):
		writeError(w, http.StatusBadRequest, "invalid_client_metadata", "registration: a redirect to loopback is application_type native")
		return
	}
	method := in.Method
	if method == "" {
		method = MethodBasic // RFC 7591 §2
	}
	if !slices.Contains(s.o.Methods, method) {
		writeError(w, http.StatusBadRequest, "invalid_client_metadata", "registration: "+method+" is not supported")
		return
	}
	id, c := s.randomText("client-"), &client{method: method, redirects: in.Redirects}
	out := map[string]any{"client_id": id, "redirect_uris": in.Redirects, "token_endpoint_auth_method": method, "application_type": in.Application}
	if method == MethodBasic || method == MethodPost {
		c.secret = s.randomText("secret-")
		out["client_secret"], out["client_secret_expires_at"] = c.secret, 0
	}
	s.mu.Lock()
	s.clients[id] = c
	s.mu.Unlock()
	writeJSON(w, http.StatusCreated, out)
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
	if code, problem := s.checkRequest(q); code != "" {
		back.Set("error", code)
		back.Set("error_description", problem)
	} else {
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

// checkRequest returns the error of an authorization request; an empty code means that it is valid.
func (s *Server) checkRequest(q url.Values) (code, problem string) {
	switch {
	case q.Get("response_type") != "code":
		return "unsupported_response_type", "response_type is not code"
	case q.Get("state") == "":
		return "invalid_request", "no state"
	case q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43:
		return "invalid_request", "no code_challenge with S256"
	case !s.isResource(q["resource"]):
		return "invalid_target", fmt.Sprintf("resource %q is not %s", q["resource"], s.AgentURL)
	case !s.knowsScopes(q.Get("scope")):
		return "invalid_scope", fmt.Sprintf("scope %q", q.Get("scope"))
	}
	return "", ""
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
	to := s.openLogin(authURL)
	if to == nil {
		return url.Values{}
	}
	return to.Query()
}

// Visit is like Approve, but follows the redirect as a browser does and returns the body of the page.
func (s *Server) Visit(authURL string) string {
	s.t.Helper()
	to := s.openLogin(authURL)
	if to == nil {
		return ""
	}
	_, body := s.getPage(to.String())
	return body
}

// openLogin returns the address to which the authorization endpoint redirects.
func (s *Server) openLogin(authURL string) *url.URL {
	s.t.Helper()
	res, body := s.getPage(authURL)
	if res == nil {
		return nil
	}
	to, err := res.Location()
	if err != nil {
		s.t.Errorf("the authorization endpoint answered %d and no redirect: %s", res.StatusCode, body)
		return nil
	}
	return to
}

func (s *Server) getPage(at string) (*http.Response, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clickTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		s.t.Error(err)
		return nil, ""
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		s.t.Error(err)
		return nil, ""
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

// writeError writes an error response of RFC 6749 §5.2.
func writeError(w http.ResponseWriter, status int, code, description string) {
	writeJSON(w, status, map[string]string{"error": code, "error_description": description})
}
