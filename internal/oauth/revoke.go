package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/agentherald/herald/internal/secret"
)

// What a token is, for Revoke (RFC 7009 §2.1).
const (
	HintAccessToken  = "access_token"
	HintRefreshToken = "refresh_token"
)

// ErrNoRevocation: the server's metadata names no revocation endpoint, so that nobody but the server's people can end
// a token.
var ErrNoRevocation = errors.New("it offers no revocation of tokens (RFC 7009)")

// Revoke has the server end a token, as the client that it was given to. hint is what the token is; a server that
// does not know the hint looks for it all the same. A token that the server does not know is ended, too. Whoever
// calls has made sure that the credential is for this server's issuer. Errors: ErrNoRevocation, *RefusedError
// (unsupported_token_type: it ends no tokens of this kind), *MetadataError,
// *UnavailableError, and others for credentials that cannot be used.
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
	if a.status >= 200 && a.status <= 299 { // what is in the answer is of no account (RFC 7009 §2.2)
		return nil
	}
	o, _ := parseObject(a.body) // where it is none the status says all
	return readRefusal(a.status, o, hidden)
}
