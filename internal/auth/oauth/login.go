package oauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/agentherald/herald/internal/base/secret"
)

// challengeMethod is the only PKCE challenge method that is used (RFC 7636 §4.2).
const challengeMethod = "S256"

// offlineAccess is the scope that requests a refresh token. It needs the prompt "consent" (OpenID Connect Core §11).
const offlineAccess = "offline_access"

// ErrState reports that a callback does not belong to this login. The login can still be finished with its own
// callback.
var ErrState = errors.New("the callback does not belong to this login: its state is another or missing")

// Login is the login of one person, from the URL to open until the callback. Printing it reveals no secret.
type Login struct {
	client     *Client
	server     Server
	credential Credential
	redirect   string
	state      secret.Secret
	verifier   secret.Secret
	address    string
	done       atomic.Bool
}

// Begin prepares a login by the authorization code grant with PKCE (OAuth 2.1 §4.1). client is the credential that the
// login completes; Begin adds offline_access to its scope if the server lists that among its scopes. redirect is
// http://127.0.0.1:port/path. Begin returns *MetadataError if the server does not advertise S256 challenges or has no
// authorization endpoint, and other errors for an invalid client or redirect.
func (c *Client) Begin(s Server, client Credential, redirect string) (*Login, error) {
	page, err := parseLoginPage(s)
	if err != nil {
		return nil, err
	}
	if _, err := parseEndpoint(redirect); err != nil {
		return nil, fmt.Errorf("the redirect URI %w", err)
	}
	client.Grant, client.Scope = GrantRefreshToken, cleanScope(client.Scope)
	if slices.Contains(s.Scopes, offlineAccess) {
		client.Scope = UnionScopes(client.Scope, offlineAccess)
	}
	if err := client.Check(); err != nil {
		return nil, fmt.Errorf("the login cannot begin: %w", err)
	}
	prompt := ""
	if slices.Contains(strings.Fields(client.Scope), offlineAccess) {
		prompt = "consent" // without it, a server ignores offline_access and issues no refresh token
	}
	state, verifier := randomText(), randomText()
	challenge := sha256.Sum256([]byte(verifier))
	query := page.Query()
	for name, value := range map[string]string{"response_type": "code", "client_id": client.ClientID,
		"redirect_uri": redirect, "state": state,
		"code_challenge": base64.RawURLEncoding.EncodeToString(challenge[:]), "code_challenge_method": challengeMethod,
		"scope": client.Scope, "resource": client.Resource, "prompt": prompt} {
		if value != "" {
			query.Set(name, value)
		}
	}
	page.RawQuery = query.Encode()
	return &Login{client: c, server: s, credential: client, redirect: redirect, state: secret.New(state),
		verifier: secret.New(verifier), address: page.String()}, nil
}

// parseLoginPage returns the server's authorization endpoint, or an error if it cannot be used.
func parseLoginPage(s Server) (*url.URL, error) {
	page, err := parseEndpoint(s.AuthorizationEndpoint)
	switch {
	case s.AuthorizationEndpoint == "":
		return nil, s.reportProblem("it names no authorization endpoint, so a login is impossible")
	case err != nil:
		return nil, s.reportProblem("its authorization endpoint " + err.Error())
	case !slices.Contains(s.Challenges, challengeMethod):
		return nil, s.reportProblem("it does not say that it checks PKCE challenges of the kind S256, without which " +
			"a code can be stolen")
	}
	return page, nil
}

// randomText returns 256 random bits as 43 characters that need no escaping.
func randomText() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// URL returns the address that the person opens in a browser.
func (l *Login) URL() string { return l.address }

// Finish checks the parameters of the callback and exchanges the code for a token. It returns ErrState unless the state
// is the one of this login. It returns *IssuerError if iss differs from the server's issuer, compared as exact strings,
// or is missing although the server announced it (RFC 9207 §2.4). A code is sent only once: after a callback with the
// right state, further calls of Finish fail. Other errors are *RefusedError, also if the person declined, and
// *UnavailableError.
func (l *Login) Finish(ctx context.Context, callback url.Values) (Token, Credential, error) {
	state, err := readParameter(callback, "state")
	if err != nil || !l.state.Compare(state) {
		return Token{}, Credential{}, ErrState
	}
	if l.done.Swap(true) {
		return Token{}, Credential{}, errors.New("this login has been finished before: begin another one")
	}
	code, err := l.readCallback(callback)
	if err != nil {
		return Token{}, Credential{}, err
	}
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {l.redirect},
		"code_verifier": {l.verifier.Reveal()}}
	if l.credential.Resource != "" {
		form.Set("resource", l.credential.Resource)
	}
	t, err := l.client.redeemGrant(ctx, l.server, l.credential, form)
	if err != nil {
		return Token{}, Credential{}, err
	}
	if t.Scope == "" {
		t.Scope = l.credential.Scope
	}
	cred := l.credential
	cred.RefreshToken = t.Refresh
	return t, cred, nil
}

// readCallback checks the issuer of the callback before it evaluates the other parameters.
func (l *Login) readCallback(callback url.Values) (code string, err error) {
	values := map[string]string{}
	for _, name := range []string{"iss", "error", "error_description", "code"} {
		if values[name], err = readParameter(callback, name); err != nil {
			return "", err
		}
	}
	switch iss := values["iss"]; {
	case iss != "" && iss != l.server.Issuer:
		return "", &IssuerError{Pinned: l.server.Issuer, Named: excerptIssuers(iss)}
	case iss == "" && l.server.IssParameter:
		return "", &IssuerError{Pinned: l.server.Issuer}
	}
	hidden := []string{values["code"], l.state.Reveal(), l.verifier.Reveal()}
	switch {
	case callback.Has("error"):
		return "", readRefusal(0, object{"error": values["error"], "error_description": values["error_description"]},
			hidden)
	case values["code"] == "" || strings.ContainsFunc(values["code"], isUnprintable):
		return "", &RefusedError{Description: "the callback brings no code"}
	}
	return values["code"], nil
}

// readParameter returns a parameter that may occur at most once (RFC 6749 §3.1).
func readParameter(callback url.Values, name string) (string, error) {
	list := callback[name]
	switch {
	case len(list) == 0:
		return "", nil
	case len(list) > 1:
		return "", &RefusedError{Description: "the callback brings " + name + " more than once"}
	case len(list[0]) > maxParameter:
		return "", &RefusedError{Description: fmt.Sprintf("the %s of the callback is longer than %d bytes", name,
			maxParameter)}
	}
	return list[0], nil
}
