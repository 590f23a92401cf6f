package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// openToken returns the header value of a token that is sent as stored, not obtained by OAuth.
func (z *Authorizer) openToken(t records.Token) (value secret.Secret, err error) {
	plain, err := z.Keys.Open(t.Ciphertext, t.Binding())
	if err != nil {
		return value, fmt.Errorf("the token stored for %s: %w", t.Origin, err)
	}
	token := string(plain)
	switch t.Scheme {
	case records.SchemeBearer, records.SchemeHeader:
	case records.SchemeFile:
		if token, err = ReadTokenFile(token); err != nil {
			problem := fmt.Sprintf("the file that holds the token stored for %s %v", t.Origin, err)
			return value, &renewalError{text: problem, cause: outcome.Fail(outcome.AuthRequired, problem)}
		}
	default:
		return value, outcome.Fail(outcome.AuthRequired,
			fmt.Sprintf("the token stored for %s is of scheme %q, which this version cannot send", t.Origin,
				text.Excerpt(t.Scheme, 40)))
	}
	if err := CheckToken(token); err != nil {
		return value, outcome.Fail(outcome.AuthRequired,
			fmt.Sprintf("the token stored for %s cannot be sent: it %v", t.Origin, err))
	}
	if t.Header == "Authorization" {
		token = "Bearer " + token
	}
	return secret.New(token), nil
}

// MaxToken bounds a token, in bytes.
const MaxToken = 16 << 10

// ExpiryWarning is how long before the expiry of a stored token operators are warned.
const ExpiryWarning = 7 * 24 * time.Hour

// CheckToken returns an error if a text cannot be sent as a token. The error contains no part of the token and is a
// predicate ("is empty"), to which the caller adds a subject.
func CheckToken(text string) error {
	switch {
	case text == "":
		return errors.New("is empty")
	case len(text) > MaxToken:
		return fmt.Errorf("is longer than %d bytes", MaxToken)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f }):
		return errors.New("has characters other than printable ASCII, or more than one line")
	case strings.TrimSpace(text) != text:
		return errors.New("begins or ends with a space")
	case len(text) > 7 && strings.EqualFold(text[:7], "bearer "):
		return errors.New("begins with the word Bearer, which is not part of it")
	}
	return nil
}

// ReadTokenFile reads a token from a file with one line. The error does not contain the path and is a predicate
// ("cannot be read").
func ReadTokenFile(path string) (string, error) {
	raw, _, err := secret.ReadFile(path, MaxToken+3)
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return "", errors.New("is no regular file")
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if err := CheckToken(text); err != nil {
		return "", fmt.Errorf("holds no token: it %w", err)
	}
	return text, nil
}
