package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/agentherald/herald/internal/base/secret"
)

// The kinds of a token, for Revoke (RFC 7009 §2.1).
const (
	HintAccessToken  = "access_token"
	HintRefreshToken = "refresh_token"
)

// ErrNoRevocation reports that the server's metadata names no revocation endpoint. Only the server's operator can
// revoke the token.
var ErrNoRevocation = errors.New("it offers no revocation of tokens (RFC 7009)")

// Revoke revokes a token at the server, as the client that it was issued to. hint is the kind of the token; a server
// that ignores the hint searches all kinds. Revoking an unknown token succeeds. The caller must make sure that the
// credential is for this server's issuer. Errors are ErrNoRevocation, *RefusedError (unsupported_token_type: the server
// does not revoke tokens of this kind), *MetadataError, *UnavailableError, and others for invalid credentials.
func (c *Client) Revoke(ctx context.Context, s Server, cred Credential, token secret.Secret, hint string) error {
	if s.RevocationEndpoint == "" {
		return ErrNoRevocation
	}
	if err := cred.Check(); err != nil {
		return fmt.Errorf("the OAuth credential cannot be used: %w", err)
	}
	form := url.Values{"token": {token.Reveal()}, "token_type_hint": {hint}}
	a, hidden, err := c.postForm(ctx, s, "revocation endpoint", s.RevocationEndpoint, cred, form)
	if err != nil {
		return err
	}
	if a.status >= 200 && a.status <= 299 { // the body has no meaning (RFC 7009 §2.2)
		return nil
	}
	o, _ := parseObject(a.body) // without an object, the status is sufficient
	return readRefusal(a.status, o, hidden)
}
