package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/secret"
)

// Token is what a token endpoint gave. It prints no secret.
type Token struct {
	Access  secret.Secret // at most 16 KiB of printable ASCII without spaces: a header can carry it
	Refresh secret.Secret // empty: none came; after a refresh that means that the old one stays
	Expires time.Time     // zero: the server did not say
	Scope   string        // granted; what was asked for when the server did not say
}

// Obtain asks for an access token, by client credentials or with a refresh token, whatever the credential is for. An
// empty scope is the credential's own, or what the refresh token was given for (RFC 6749 §6). Whoever calls has made
// sure that the credential is for this server's issuer. Errors: *RefusedError, *UnavailableError, and others for
// credentials that cannot be used.
func (c *Client) Obtain(ctx context.Context, s Server, cred Credential, scope string) (Token, error) {
	if err := cred.Check(); err != nil {
		return Token{}, fmt.Errorf("the OAuth credential cannot be used: %w", err)
	}
	form := url.Values{"grant_type": {cred.Grant}}
	switch cred.Grant {
	case GrantRefreshToken:
		if cred.RefreshToken.IsZero() {
			return Token{}, &RefusedError{Code: "invalid_grant", Description: "the server gave no refresh token when the person logged in"}
		}
		form.Set("refresh_token", cred.RefreshToken.Reveal())
	case GrantClientCredentials:
		if scope == "" {
			scope = cred.Scope
		}
	}
	if scope = cleanScope(scope); scope != "" {
		form.Set("scope", scope)
	}
	if cred.Resource != "" {
		form.Set("resource", cred.Resource)
	}
	t, err := c.redeemGrant(ctx, s, cred, form)
	if err == nil && t.Scope == "" {
		t.Scope = cred.Scope
	}
	return t, err
}

// redeemGrant sends a form to the token endpoint, as the client that cred says.
func (c *Client) redeemGrant(ctx context.Context, s Server, cred Credential, form url.Values) (Token, error) {
	asked, before := form.Get("scope"), c.now()
	a, hidden, err := c.postForm(ctx, s, "token endpoint", s.TokenEndpoint, cred, form)
	if err != nil {
		return Token{}, err
	}
	t, err := readToken(a, before, asked, hidden)
	if errors.Is(err, errNoToken) {
		return Token{}, &UnavailableError{Host: a.host, Status: a.status, Err: err}
	}
	if cred.Grant == GrantClientCredentials && form.Get("grant_type") == GrantClientCredentials {
		t.Refresh = secret.Secret{} // some servers send one (RFC 6749 §4.4.3 advises against it), and there is nothing to do with it
	}
	return t, err
}

// postForm sends a form to an endpoint of the server, called what in errors, as the client that cred says. hidden are
// the secrets that went along.
func (c *Client) postForm(ctx context.Context, s Server, what, address string, cred Credential,
	form url.Values) (a *answer, hidden []string, err error) {
	endpoint, err := parseEndpoint(address)
	if err != nil {
		return nil, nil, s.reportProblem("its " + what + " " + err.Error())
	}
	if err := c.authenticateClient(s, cred, form); err != nil {
		return nil, nil, err
	}
	req := newPost(endpoint, "application/x-www-form-urlencoded", []byte(form.Encode()))
	if cred.Method == MethodBasic { // both halves are form-encoded before they are joined
		req.SetBasicAuth(url.QueryEscape(cred.ClientID), url.QueryEscape(cred.Secret.Reveal()))
	}
	hidden = []string{cred.Secret.Reveal(), cred.RefreshToken.Reveal(), form.Get("code"), form.Get("code_verifier"),
		form.Get("client_assertion"), form.Get("token"), strings.TrimPrefix(req.Header.Get("Authorization"), "Basic ")}
	a, err = c.sendRequest(ctx, req, maxAnswer, hidden)
	return a, hidden, err
}

// authenticateClient adds to a form what the client says who it is with (RFC 6749 §2.3.1, RFC 7523 §2.2); Basic is a
// header.
func (c *Client) authenticateClient(s Server, cred Credential, form url.Values) error {
	switch cred.Method {
	case MethodBasic:
		return nil
	case MethodPost:
		form.Set("client_secret", cred.Secret.Reveal())
	case MethodKey:
		key, err := newSigner(cred.Key, cred.Algorithm, s.Algorithms)
		if err != nil {
			return fmt.Errorf("the OAuth credential cannot be used: %w", err)
		}
		assertion, err := key.signAssertion(cred.ClientID, s.Issuer, cred.KeyID, c.now())
		if err != nil {
			return fmt.Errorf("the OAuth credential cannot be used: %w", err)
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	form.Set("client_id", cred.ClientID)
	return nil
}

// errNoToken: what came with a success is no token answer (RFC 6749 §5.1).
var errNoToken = errors.New("its answer is no token")

// readToken reads the answer of a token endpoint. asked is the scope that was asked for. Errors: *RefusedError, and
// errNoAnswer wrapped.
func readToken(a *answer, now time.Time, asked string, hidden []string) (Token, error) {
	o, err := parseObject(a.body)
	if a.status < 200 || a.status > 299 {
		return Token{}, readRefusal(a.status, o, hidden)
	}
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errNoToken, err)
	}
	access, err := o.getText("access_token", maxSecret)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("%w: %w", errNoToken, err)
	case access == "" && o["error"] != nil: // some say no with a 200
		return Token{}, readRefusal(a.status, o, hidden)
	case access == "" || strings.ContainsFunc(access, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Token{}, fmt.Errorf("%w: its access_token is empty or holds what cannot be sent", errNoToken)
	}
	kind, err := o.getText("token_type", maxName)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errNoToken, err)
	}
	if !strings.EqualFold(kind, "Bearer") {
		if kind = excerpt(hideSecrets(kind, append(hidden, access)), maxText); kind == "" {
			kind = "nothing"
		}
		return Token{}, &RefusedError{Status: a.status,
			Code: "unsupported_token_type", Description: "its tokens are of type " + kind +
				", and Herald sends Bearer only"}
	}
	refresh, err := o.getText("refresh_token", maxSecret)
	if err == nil && strings.ContainsFunc(refresh, isUnprintable) {
		err = errors.New("its refresh_token holds what cannot be sent")
	}
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errNoToken, err)
	}
	scope, err := o.getText("scope", maxScope)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errNoToken, err)
	}
	t := Token{Access: secret.New(access), Expires: readExpiry(o["expires_in"], now), Scope: asked}
	if refresh != "" {
		t.Refresh = secret.New(refresh)
	}
	if scope = cleanScope(scope); scope != "" {
		t.Scope = scope
	}
	return t, nil
}

// readExpiry is when a token ends that was asked for at now. Some servers write the seconds as text. Zero when there is
// nothing usable.
func readExpiry(v any, now time.Time) time.Time {
	n, ok := v.(json.Number)
	if text, is := v.(string); is {
		n, ok = json.Number(text), true
	}
	seconds, err := n.Float64()
	if !ok || err != nil || math.IsNaN(seconds) || seconds <= 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(min(seconds, maxLife.Seconds()) * float64(time.Second)))
}

// readRefusal reads why a server says no (RFC 6749 §5.2, RFC 7591 §3.2.2). A server that echoes what it was sent is not
// quoted.
func readRefusal(status int, o object, hidden []string) *RefusedError {
	e := &RefusedError{Status: status}
	if status >= 300 && status < 400 {
		e.Description = "it redirects elsewhere, which is not followed"
		return e
	}
	code, _ := o.getText("error", maxErrorCode)
	if code = cleanCode(code); hideSecrets(code, hidden) == code {
		e.Code = code
	}
	description, _ := o.getText("error_description", maxAnswer)
	e.Description = excerpt(hideSecrets(description, hidden), maxText)
	return e
}
