package oauthtest

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v4"
)

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	maxAssertion  = 10 * time.Minute // maximum validity
)

// algorithms are the public-key algorithms of RFC 7518 §3.1 and RFC 8037.
var algorithms = []string{"ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA"}

// checkAssertion returns the client that an assertion authenticates, or the problem with it (RFC 7523 §3). s.mu is held.
func (s *Server) checkAssertion(form url.Values) (id, problem string) {
	if form.Get("client_assertion_type") != assertionType {
		return "", "client_assertion_type"
	}
	var c jwt.RegisteredClaims
	assertion, parts, err := jwt.NewParser().ParseUnverified(form.Get("client_assertion"), &c)
	if err != nil {
		return "", "the assertion is no JWT: " + err.Error()
	}
	known := s.clients[c.Subject]
	now := s.o.Now()
	switch {
	case c.Issuer == "" || c.Issuer != c.Subject:
		return "", "the assertion's iss and sub are not the client"
	case form.Has("client_id") && form.Get("client_id") != c.Subject:
		return "", "client_id is another than the assertion's sub"
	case known == nil || known.key == nil:
		return "", fmt.Sprintf("no key of client %q is known", c.Subject)
	case !slices.Equal(c.Audience, []string{s.Issuer}):
		return "", fmt.Sprintf("the assertion's aud %q is not the issuer", c.Audience)
	case c.ExpiresAt == nil || !c.ExpiresAt.After(now) || c.ExpiresAt.After(now.Add(maxAssertion)):
		return "", fmt.Sprintf("the assertion's exp %v is not within %s from now", c.ExpiresAt, maxAssertion)
	case c.IssuedAt != nil && c.IssuedAt.After(now.Add(time.Second)):
		return "", "the assertion was issued in the future"
	case c.ID == "" || s.seen[c.ID]:
		return "", "the assertion's jti is missing or was seen before"
	}
	if err := verifySignature(known.key, assertion.Method, parts[0]+"."+parts[1], parts[2]); err != nil {
		return "", fmt.Sprintf("the assertion's signature by %s is not that of the key: %s", assertion.Method.Alg(), err)
	}
	s.seen[c.ID] = true
	return c.Subject, ""
}

// verifySignature verifies a signature according to RFC 7515 §5.2. It is stricter than jwt, which accepts a key of another
// curve and PSS with a salt of any length (RFC 7518 §3.4 and §3.5).
func verifySignature(key any, method jwt.SigningMethod, signed, signature string) error {
	if !slices.Contains(algorithms, method.Alg()) {
		return errors.New("the algorithm is refused")
	}
	switch m := method.(type) {
	case *jwt.SigningMethodECDSA:
		if k, ok := key.(*ecdsa.PublicKey); ok && k.Curve.Params().BitSize != m.CurveBits {
			return errors.New("the key is of another curve")
		}
	case *jwt.SigningMethodRSAPSS:
		exact := rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}
		method = &jwt.SigningMethodRSAPSS{SigningMethodRSA: m.SigningMethodRSA, VerifyOptions: &exact}
	}
	return method.Verify(signed, signature, key)
}
