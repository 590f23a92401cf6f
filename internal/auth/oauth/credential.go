package oauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/secret"
)

// The values of Credential.Grant.
const (
	GrantClientCredentials = "client_credentials"
	GrantRefreshToken      = "refresh_token"
)

// The methods by which a client authenticates (RFC 7591 §2).
const (
	MethodBasic = "client_secret_basic"
	MethodPost  = "client_secret_post"
	MethodKey   = "private_key_jwt"
	MethodNone  = "none"
)

// Credential is the credential that an operator stores for one resource at one authorization server. Printing it
// reveals no secret; Marshal does.
type Credential struct {
	Grant    string `json:"grant"` // GrantClientCredentials or GrantRefreshToken
	ClientID string `json:"client_id"`
	Method   string `json:"method"` // MethodBasic, MethodPost, MethodKey, or MethodNone (refresh tokens only)

	Secret secret.Secret `json:"-"` // for MethodBasic and MethodPost
	Key    secret.Secret `json:"-"` // for MethodKey: PEM, as PKCS #8, SEC 1 or PKCS #1

	// RefreshToken is for GrantRefreshToken. It is empty if the server issued none: then the access token cannot be
	// renewed, and Obtain returns *RefusedError invalid_grant without a request.
	RefreshToken secret.Secret `json:"-"`

	KeyID string `json:"key_id,omitempty"` // for MethodKey: "kid"; may be empty
	// Algorithm is for MethodKey: ES256, ES384, ES512, RS256, RS384, RS512, PS256, PS384, PS512 or EdDSA. Empty: one
	// that suits the key and the server.
	Algorithm string `json:"algorithm,omitempty"`
	Resource  string `json:"resource,omitempty"` // value of the resource parameter; empty: not sent
	Scope     string `json:"scope,omitempty"`    // requested by default; may be empty
}

// Check returns an error if the credential is not valid. The error is a sentence without secrets.
func (c Credential) Check() error {
	if c.Grant != GrantClientCredentials && c.Grant != GrantRefreshToken {
		return errors.New("its grant is neither client_credentials nor refresh_token")
	}
	if c.Grant == GrantClientCredentials && c.Method == MethodNone {
		return errors.New("client credentials need a secret or a key")
	}
	if c.Grant == GrantClientCredentials && !c.RefreshToken.IsZero() {
		return errors.New("client credentials have no refresh token")
	}
	if err := checkSecret("refresh token", c.RefreshToken, true); err != nil {
		return err
	}
	if c.Resource != "" {
		if _, err := parseURL(c.Resource); err != nil {
			return errors.New("its resource " + err.Error())
		}
	}
	if len(c.Scope) > maxScope || cleanScope(c.Scope) != c.Scope {
		return errors.New("its scope is no list of scopes with single spaces between, each once")
	}
	return c.checkClient()
}

// checkClient checks the fields by which the client authenticates.
func (c Credential) checkClient() error {
	switch {
	case c.ClientID == "":
		return errors.New("it names no client id")
	case len(c.ClientID) > maxClientID || strings.ContainsFunc(c.ClientID, isUnprintable):
		return fmt.Errorf("its client id is longer than %d bytes or has characters other than printable ASCII",
			maxClientID)
	case len(c.KeyID) > maxName || strings.ContainsFunc(c.KeyID, isUnprintable):
		return fmt.Errorf("its key id is longer than %d bytes or has characters other than printable ASCII", maxName)
	case c.Method != MethodKey && (!c.Key.IsZero() || c.KeyID != "" || c.Algorithm != ""):
		return fmt.Errorf("a key, key id or algorithm goes with %s only", MethodKey)
	case (c.Method == MethodKey || c.Method == MethodNone) && !c.Secret.IsZero():
		return fmt.Errorf("a secret goes with %s and %s only", MethodBasic, MethodPost)
	}
	switch c.Method {
	case MethodNone:
		return nil
	case MethodBasic, MethodPost:
		return checkSecret("client secret", c.Secret, false)
	case MethodKey:
		_, err := newSigner(c.Key, c.Algorithm, nil)
		return err
	}
	return fmt.Errorf("its method is not %s, %s, %s or %s", MethodBasic, MethodPost, MethodKey, MethodNone)
}

// checkSecret enforces RFC 6749 appendix A, but also allows non-ASCII letters, which some servers accept.
func checkSecret(what string, s secret.Secret, mayLack bool) error {
	text := s.Reveal()
	switch {
	case text == "" && !mayLack:
		return errors.New("the " + what + " is empty")
	case len(text) > maxSecret:
		return fmt.Errorf("the %s is longer than %d bytes", what, maxSecret)
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }):
		return errors.New("the " + what + " holds control characters, or is more than one line")
	}
	return nil
}

func isUnprintable(r rune) bool { return r < ' ' || r > '~' }

// storedCredential is the form in which a Credential is encrypted and stored: with its secrets in clear text.
type storedCredential struct {
	Credential
	Secret       string `json:"secret,omitempty"`
	Key          string `json:"key,omitempty"`
	RefreshToken string `json:"refresh_token,omitempty"`
}

// Marshal encodes the credential with its secrets in clear text, to be encrypted by the caller. It returns the error of
// Check if there is one.
func (c Credential) Marshal() ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	return json.Marshal(storedCredential{c, c.Secret.Reveal(), c.Key.Reveal(), c.RefreshToken.Reveal()})
}

// maxStored bounds the input of ParseCredential: every field at its maximum length, escaped.
const maxStored = 256 << 10

// ParseCredential decodes the output of Marshal and checks it. Its errors contain no part of the input.
func ParseCredential(plain []byte) (Credential, error) {
	if len(plain) > maxStored {
		return Credential{}, errors.New("the stored credential is too long")
	}
	o, err := parseObject(plain)
	if err != nil {
		return Credential{}, fmt.Errorf("the stored credential cannot be read: %w", err)
	}
	var s storedCredential
	err = json.Unmarshal(plain, &s)
	again, _ := json.Marshal(s) // cannot fail for strings
	if known, _ := parseObject(again); err != nil || !reflect.DeepEqual(o, known) {
		return Credential{}, errors.New("the stored credential holds what this version does not know: " +
			"it was stored by a newer one")
	}
	c := s.Credential
	c.Secret, c.Key, c.RefreshToken = secret.New(s.Secret), secret.New(s.Key), secret.New(s.RefreshToken)
	if err := c.Check(); err != nil {
		return Credential{}, fmt.Errorf("the stored credential cannot be used: %w", err)
	}
	return c, nil
}
