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

	"github.com/agentherald/herald/internal/base/secret"
)

// Token is the answer of a token endpoint. Printing it reveals no secret.
type Token struct {
	Access  secret.Secret // at most 16 KiB of printable ASCII without spaces, so that a header can carry it
	Refresh secret.Secret // empty if none was sent; after a refresh the old one then stays valid
	Expires time.Time     // zero if the server did not specify it
	Scope   string        // the granted scope, or the requested one if the server did not specify it
}

// Obtain requests an access token by the grant of the credential: client credentials or refresh token. An empty scope
// means the credential's own, or for a refresh token the scope it was issued for (RFC 6749 §6). The caller must make
// sure that the credential is for this server's issuer. Errors are *RefusedError, *UnavailableError, and others for
// invalid credentials.
func (c *Client) Obtain(ctx context.Context, s Server, cred Credential, scope string) (Token, error) {
	if err := cred.Check(); err != nil {
		return Token{}, fmt.Errorf("the OAuth credential cannot be used: %w", err)
	}
	form := url.Values{"grant_type": {cred.Grant}}
	switch cred.Grant {
	case GrantRefreshToken:
		if cred.RefreshToken.IsZero() {
			return Token{}, &RefusedError{Code: "invalid_grant",
				Description: "the server gave no refresh token when the person logged in"}
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

// redeemGrant sends a form to the token endpoint, authenticated as the client of cred.
func (c *Client) redeemGrant(ctx context.Context, s Server, cred Credential, form url.Values) (Token, error) {
	asked, before := form.Get("scope"), c.Now()
	a, hidden, err := c.postForm(ctx, s, "token endpoint", s.TokenEndpoint, cred, form)
	if err != nil {
		return Token{}, err
	}
	t, err := readToken(a, before, asked, hidden)
	if errors.Is(err, errNoToken) {
		return Token{}, &UnavailableError{Host: a.host, Status: a.status, Err: err}
	}
	if cred.Grant == GrantClientCredentials && form.Get("grant_type") == GrantClientCredentials {
		// Some servers send a refresh token although RFC 6749 §4.4.3 advises against it. It is of no use here.
		t.Refresh = secret.Secret{}
	}
	return t, err
}

// postForm sends a form to an endpoint of the server, authenticated as the client of cred. Errors call the endpoint by
// the name in what. hidden are the secrets in the request.
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
	if cred.Method == MethodBasic { // both parts are form-encoded before they are joined
		req.SetBasicAuth(url.QueryEscape(cred.ClientID), url.QueryEscape(cred.Secret.Reveal()))
	}
	hidden = []string{cred.Secret.Reveal(), cred.RefreshToken.Reveal(), form.Get("code"), form.Get("code_verifier"),
		form.Get("client_assertion"), form.Get("token"), strings.TrimPrefix(req.Header.Get("Authorization"), "Basic ")}
	a, err = c.sendRequest(ctx, req, maxAnswer, hidden)
	return a, hidden, err
}

// authenticateClient adds the client's authentication to a form (RFC 6749 §2.3.1, RFC 7523 §2.2). For Basic it adds
// nothing, because postForm sets a header.
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
		assertion, err := key.signAssertion(cred.ClientID, s.Issuer, cred.KeyID, c.Now())
		if err != nil {
			return fmt.Errorf("the OAuth credential cannot be used: %w", err)
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	form.Set("client_id", cred.ClientID)
	return nil
}

// errNoToken reports that a successful response is not a valid token response (RFC 6749 §5.1).
var errNoToken = errors.New("its answer is no token")

// readToken parses the response of a token endpoint. asked is the requested scope. Errors are *RefusedError, and
// errNoToken wrapped.
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
	case access == "" && o["error"] != nil: // some servers refuse with a 200
		return Token{}, readRefusal(a.status, o, hidden)
	case access == "" || strings.ContainsFunc(access, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Token{}, fmt.Errorf("%w: its access_token is empty or contains characters that cannot be sent",
			errNoToken)
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
		err = errors.New("its refresh_token contains characters that cannot be sent")
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

// readExpiry returns when a token that was requested at now expires. It accepts seconds as a number or, as some servers
// send them, as a string. It returns the zero time if v is not usable.
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

// readRefusal parses an error response (RFC 6749 §5.2, RFC 7591 §3.2.2). It omits text in which the server echoes a
// secret.
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
