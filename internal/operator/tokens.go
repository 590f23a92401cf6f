package operator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/store/records"
)

// Token describes a stored token without its secret.
type Token struct {
	Agent     string                    `json:"agent"`
	Registry  string                    `json:"identityRegistry"`
	Origin    netguard.CredentialOrigin `json:"origin"`
	Path      string                    `json:"path,omitempty"` // with all paths below; "": the path of the endpoint
	Scheme    string                    `json:"scheme"`
	Header    string                    `json:"header"`
	Issuer    string                    `json:"issuer,omitempty"` // authorization server of an OAuth credential
	Key       uint32                    `json:"key"`              // id of the key that sealed it
	CreatedAt time.Time                 `json:"createdAt"`
	UpdatedAt time.Time                 `json:"updatedAt"`
	ExpiresAt *time.Time                `json:"expiresAt,omitempty"`
	State     string                    `json:"state"` // valid, soon, expired, or sealed: HERALD_KEYSET lacks its key
	// Transferred: the agent changed its owner after the token was stored. Only ShowAgent sets it.
	Transferred bool `json:"transferred,omitempty"`
}

// States of a stored token.
const (
	TokenValid   = "valid"
	TokenSoon    = "soon"
	TokenExpired = "expired"
	TokenSealed  = "sealed"
)

// Authorization is the header in which the word Bearer precedes the token. All other headers contain the bare token.
const Authorization = "Authorization"

// DescribeToken describes a stored token. It does not check whether the keyset contains the key of the token.
func DescribeToken(t records.Token, now time.Time) Token {
	key, _ := secret.KeyID(t.Ciphertext)
	state := TokenExpired
	switch {
	case t.ExpiresAt == nil || t.ExpiresAt.After(now.Add(auth.ExpiryWarning)):
		state = TokenValid
	case t.ExpiresAt.After(now):
		state = TokenSoon
	}
	return Token{Agent: t.Agent.String(), Registry: t.Registry, Origin: t.Origin, Path: t.Path, Scheme: t.Scheme,
		Header: t.Header, Issuer: t.Issuer, Key: key, CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt,
		ExpiresAt: t.ExpiresAt, State: state}
}

// Destination returns in words to which addresses the token is sent.
func (t Token) Destination() string {
	switch t.Path {
	case "":
		return text.Printable(t.Origin) + " (the agent's own path)"
	case "/":
		return text.Printable(t.Origin) + " (every path)"
	}
	return text.Printable(text.Shorten(string(t.Origin) + t.Path))
}

// Sent returns in words in which header the token is sent and how Herald obtained it.
func (t Token) Sent() string {
	how := "the header " + t.Header
	if t.Header == Authorization {
		how = "Authorization: Bearer"
	}
	if t.Scheme == records.SchemeFile {
		how += ", read from a file"
	}
	return text.Printable(how + t.Grant())
}

// Grant returns how Herald obtained an OAuth token, as in ", had by a login from ISSUER". It is empty for other tokens.
func (t Token) Grant() string {
	grant := ""
	switch t.Scheme {
	case records.SchemeClientCredentials:
		grant = "client credentials"
	case records.SchemeAuthorizationCode:
		grant = "a login"
	default:
		return ""
	}
	return fmt.Sprintf(", had by %s from %s", grant, cmp.Or(t.Issuer, "nobody"))
}

// EachToken calls do for all tokens that after lists, page by page.
func EachToken(ctx context.Context, after func(context.Context, *records.Token) ([]records.Token, error),
	do func(records.Token) error) error {
	for last := (*records.Token)(nil); ; {
		page, err := after(ctx, last)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, t := range page {
			if err := do(t); err != nil {
				return err
			}
		}
		last = &page[len(page)-1]
	}
}
