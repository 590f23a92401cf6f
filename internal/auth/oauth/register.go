package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/base/secret"
)

// Register registers a client for logins at the server (RFC 7591). The client is native and uses the authorization code
// grant, and refresh tokens unless the server's metadata excludes them. redirect is its only redirect URI, and scope
// may be empty. The returned credential is for Begin: it has no refresh token yet. Errors are *MetadataError if the
// server offers no registration, *RefusedError and *UnavailableError.
func (c *Client) Register(ctx context.Context, s Server, redirect, scope string) (Credential, error) {
	if s.RegistrationEndpoint == "" {
		return Credential{}, s.reportProblem("it registers no clients by itself: have one registered, " +
			"and name its client id")
	}
	endpoint, err := parseEndpoint(s.RegistrationEndpoint)
	if err != nil {
		return Credential{}, s.reportProblem("its registration endpoint " + err.Error())
	}
	if _, err := parseEndpoint(redirect); err != nil {
		return Credential{}, fmt.Errorf("the redirect URI %w", err)
	}
	body, err := describeClient(s, redirect, cleanScope(scope))
	if err != nil {
		return Credential{}, err
	}
	a, err := c.sendRequest(ctx, newPost(endpoint, "application/json", body), maxAnswer, nil)
	if err != nil {
		return Credential{}, err
	}
	o, err := parseObject(a.body)
	if a.status < 200 || a.status > 299 {
		return Credential{}, readRefusal(a.status, o, nil)
	}
	if err == nil {
		var cred Credential
		if cred, err = readClient(s, o); err == nil {
			cred.Scope = cleanScope(scope)
			return cred, nil
		}
	}
	return Credential{}, &UnavailableError{Host: endpoint.Host,
		Err: fmt.Errorf("its answer is no registration: %w", err)}
}

// describeClient returns the client's metadata (RFC 7591 §2).
func describeClient(s Server, redirect, scope string) ([]byte, error) {
	method := MethodNone
	switch fits := func(m string) bool { return slices.Contains(s.AuthMethods, m) }; {
	case fits(MethodNone):
	case len(s.AuthMethods) == 0, fits(MethodBasic):
		method = MethodBasic
	case fits(MethodPost):
		method = MethodPost
	}
	grants := []string{"authorization_code"}
	if len(s.Grants) == 0 || slices.Contains(s.Grants, GrantRefreshToken) {
		grants = append(grants, GrantRefreshToken)
	}
	raw, err := json.Marshal(struct {
		Name        string   `json:"client_name"`
		Redirects   []string `json:"redirect_uris"`
		Grants      []string `json:"grant_types"`
		Responses   []string `json:"response_types"`
		Method      string   `json:"token_endpoint_auth_method"`
		Application string   `json:"application_type"` // required by MCP 2026-07-28
		Scope       string   `json:"scope,omitempty"`
	}{"Herald", []string{redirect}, grants, []string{"code"}, method, "native", scope})
	if err != nil {
		return nil, fmt.Errorf("describe the client: %w", err)
	}
	return raw, nil
}

// readClient parses the answer to a registration (RFC 7591 §3.2.1). The server may choose another authentication method
// than the requested one.
func readClient(s Server, o object) (Credential, error) {
	c := Credential{Grant: GrantRefreshToken}
	var err error
	if c.ClientID, err = o.getText("client_id", maxClientID); err != nil {
		return Credential{}, err
	}
	given, err := o.getText("client_secret", maxSecret)
	if err != nil {
		return Credential{}, err
	}
	if c.Method, err = o.getText("token_endpoint_auth_method", maxName); err != nil {
		return Credential{}, err
	}
	if c.Method == "" {
		// If the answer names no method, it means Basic (RFC 7591 §2), provided that the server supports it.
		if c.Method, err = s.Method(given != "", false); err != nil {
			c.Method = MethodNone
		}
	}
	switch c.Method {
	case MethodBasic, MethodPost:
		c.Secret = secret.New(given)
	case MethodNone:
	default:
		return Credential{}, errors.New("it requires another authentication method than the requested one")
	}
	return c, c.Check()
}
