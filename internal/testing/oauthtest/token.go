package oauthtest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// grant is the consent of a person or the right of a client, which a code or a refresh token represents.
type grant struct {
	client, redirect, challenge, scope string
	// used: this code or refresh token was used. ended: the whole grant has ended.
	ended, used bool
	whole       *grant
}

// token is an access token.
type token struct {
	text, client, scope string
	expires             time.Time
	revoked             bool
	whole               *grant // nil: not from a login
}

// Token describes an access token that was issued.
type Token struct {
	Access  string
	Expires time.Time
}

// Tokens returns all access tokens issued, in order.
func (s *Server) Tokens() []Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Token, 0, len(s.tokens))
	for _, t := range s.tokens {
		out = append(out, Token{Access: t.text, Expires: t.expires})
	}
	return out
}

// Revoke makes the agent refuse the given access tokens, or all issued so far if none is given.
func (s *Server) Revoke(access ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tokens {
		if len(access) == 0 || slices.Contains(access, t.text) {
			t.revoked = true
		}
	}
}

// newCode issues an authorization code for the request q.
func (s *Server) newCode(id, redirect string, q url.Values) string {
	g := &grant{client: id, redirect: redirect, challenge: q.Get("code_challenge"), scope: q.Get("scope")}
	g.whole = g
	code := s.randomText("code-")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[code] = g
	return code
}

// RefreshToken issues a refresh token, as a login would have, for a registered client.
func (s *Server) RefreshToken(clientID, scope string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &grant{client: clientID, scope: scope}
	g.whole = g
	return s.newRefresh(g)
}

// newRefresh issues a refresh token of the grant. s.mu is held.
func (s *Server) newRefresh(whole *grant) string {
	text := s.randomText("refresh-")
	s.refresh[text] = &grant{client: whole.client, scope: whole.scope, whole: whole}
	return text
}

// refusal is an error response of RFC 6749 §5.2.
type refusal struct{ code, description string }

func (r refusal) Error() string { return r.code + ": " + r.description }

// serveForm answers a form of an authenticated client with what handle returns: JSON, or a refusal. handle is called with s.mu held.
func (s *Server) serveForm(w http.ResponseWriter, r *http.Request, form url.Values, handle func(form url.Values, id string) (map[string]any, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.identifyClient(r, form)
	var out map[string]any
	if err == nil {
		out, err = handle(form, id)
	}
	writeAnswer(w, http.StatusOK, out, err)
}

// identifyClient returns the authenticated client of a valid form. s.mu is held.
func (s *Server) identifyClient(r *http.Request, form url.Values) (id string, err error) {
	for name, values := range form {
		if len(values) > 1 {
			return "", refusal{"invalid_request", name + " is there twice"}
		}
	}
	switch {
	case r.URL.RawQuery != "":
		return "", refusal{"invalid_request", "parameters in the URL"}
	case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded"):
		return "", refusal{"invalid_request", "the body is no form"}
	}
	id, problem := s.authenticateClient(r, form)
	if problem != "" {
		return "", refusal{"invalid_client", problem}
	}
	return id, nil
}

// grantToken implements RFC 6749 §3.2. s.mu is held.
func (s *Server) grantToken(form url.Values, id string) (map[string]any, error) {
	switch form.Get("grant_type") {
	case "client_credentials":
		if c := s.clients[id]; c == nil || c.secret == "" && c.key == nil {
			return nil, refusal{"unauthorized_client", "client_credentials is for confidential clients"}
		}
		return s.issueToken(form, &grant{client: id, scope: form.Get("scope")}, "")
	case "authorization_code":
		return s.redeemCode(form, id)
	case "refresh_token":
		return s.refreshToken(form, id)
	}
	return nil, refusal{"unsupported_grant_type", form.Get("grant_type")}
}

// redeemCode implements RFC 6749 §4.1.3 and RFC 7636 §4.6.
func (s *Server) redeemCode(form url.Values, id string) (map[string]any, error) {
	g := s.codes[form.Get("code")]
	sum := sha256.Sum256([]byte(form.Get("code_verifier")))
	switch verifier := form.Get("code_verifier"); {
	case g == nil || g.client != id || g.used:
		return nil, refusal{"invalid_grant", "the code is unknown, used or another client's"}
	case g.redirect != form.Get("redirect_uri"):
		return nil, refusal{"invalid_grant", "redirect_uri is another"}
	case len(verifier) < 43 || len(verifier) > 128 || base64.RawURLEncoding.EncodeToString(sum[:]) != g.challenge:
		return nil, refusal{"invalid_grant", "code_verifier does not match"}
	}
	g.used = true
	refresh := ""
	if !s.o.NoRefresh && (!slices.Contains(s.o.Scopes, "offline_access") || slices.Contains(strings.Fields(g.scope), "offline_access")) {
		refresh = s.newRefresh(g)
	}
	return s.issueToken(form, g, refresh)
}

// refreshToken implements RFC 6749 §6, with the rotation of RFC 9700 §4.14.
func (s *Server) refreshToken(form url.Values, id string) (map[string]any, error) {
	g := s.refresh[form.Get("refresh_token")]
	switch {
	case g == nil || g.client != id || g.whole.ended:
		return nil, refusal{"invalid_grant", "the refresh token is unknown, revoked or another client's"}
	case g.used:
		g.whole.ended = true
		return nil, refusal{"invalid_grant", "the refresh token was used before: the whole grant is revoked"}
	}
	narrowed := *g
	if scope := form.Get("scope"); scope != "" {
		for _, one := range strings.Fields(scope) {
			if !slices.Contains(strings.Fields(g.scope), one) {
				return nil, refusal{"invalid_scope", one + " was not granted"}
			}
		}
		narrowed.scope = scope
	}
	if !s.isResource(form["resource"]) {
		return nil, refusal{"invalid_target", fmt.Sprintf("resource %q", form["resource"])}
	}
	refresh := ""
	if s.o.RotateRefresh {
		g.used = true
		refresh = s.newRefresh(g.whole)
	}
	return s.issueToken(form, &narrowed, refresh)
}

// issueToken returns the answer with a new access token. s.mu is held.
func (s *Server) issueToken(form url.Values, g *grant, refresh string) (map[string]any, error) {
	switch {
	case !s.isResource(form["resource"]):
		return nil, refusal{"invalid_target", fmt.Sprintf("resource %q is not %s", form["resource"], s.AgentURL)}
	case !s.knowsScopes(g.scope):
		return nil, refusal{"invalid_scope", fmt.Sprintf("scope %q", g.scope)}
	}
	t := &token{text: s.randomText("access-"), client: g.client, scope: g.scope, expires: s.o.Now().Add(s.o.Lifetime), whole: g.whole}
	s.tokens = append(s.tokens, t)
	out := map[string]any{"access_token": t.text, "token_type": "Bearer",
		"expires_in": int64(s.o.Lifetime / time.Second)}
	if t.scope != "" {
		out["scope"] = t.scope
	}
	if refresh != "" {
		out["refresh_token"] = refresh
	}
	return out, nil
}

// authenticateClient returns the client of a request, or the problem with its authentication (RFC 6749 §2.3). s.mu is
// held.
func (s *Server) authenticateClient(r *http.Request, form url.Values) (id, problem string) {
	id = form.Get("client_id")
	method := MethodNone
	header := r.Header.Get("Authorization")
	switch {
	case header != "" && (form.Has("client_secret") || form.Has("client_assertion")), form.Has("client_secret") && form.Has("client_assertion"):
		return "", "two ways of client authentication in one request"
	case header != "":
		method = MethodBasic
	case form.Has("client_secret"):
		method = MethodPost
	case form.Has("client_assertion"):
		method = MethodKey
	}
	if !slices.Contains(s.o.Methods, method) {
		return "", method + " is not supported"
	}
	given := form.Get("client_secret")
	switch method {
	case MethodBasic:
		name, secret, ok := readBasic(r)
		if !ok || id != "" && id != name {
			return "", "the Authorization header is no Basic, or names another client"
		}
		id, given = name, secret
	case MethodKey:
		if id, problem = s.checkAssertion(form); problem != "" {
			return "", problem
		}
	}
	c := s.clients[id]
	if c == nil && s.o.ClientIDMetadata && strings.HasPrefix(id, "https://") {
		c = &client{}
	}
	switch {
	case c == nil:
		return "", fmt.Sprintf("client %q is unknown", id)
	case c.method != "" && c.method != method:
		return "", "the client is registered for " + c.method
	case (c.secret != "" || c.key != nil) && method == MethodNone:
		return "", "the client does not authenticate"
	case (method == MethodBasic || method == MethodPost) && (c.secret == "" || subtle.ConstantTimeCompare([]byte(c.secret), []byte(given)) == 0):
		return "", "the secret is wrong"
	}
	return id, ""
}

// readBasic parses the Authorization header according to RFC 6749 §2.3.1: both parts are form-encoded.
func readBasic(r *http.Request) (id, secret string, ok bool) {
	name, given, ok := r.BasicAuth()
	if !ok {
		return "", "", false
	}
	id, err := url.QueryUnescape(name)
	if err != nil {
		return "", "", false
	}
	secret, err = url.QueryUnescape(given)
	return id, secret, err == nil
}
