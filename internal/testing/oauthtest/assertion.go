package oauthtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"time"

	_ "crypto/sha256" // for crypto.Hash
	_ "crypto/sha512" // for crypto.Hash
)

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	maxAssertion  = 10 * time.Minute // maximum validity
)

// claims are the JWT claims of RFC 7523 §3.
type claims struct {
	Issuer   string          `json:"iss"`
	Subject  string          `json:"sub"`
	Audience json.RawMessage `json:"aud"`
	Expires  float64         `json:"exp"`
	Issued   float64         `json:"iat"`
	ID       string          `json:"jti"`
}

// checkAssertion returns the client that an assertion authenticates, or the problem with it. s.mu is held.
func (s *Server) checkAssertion(form url.Values) (id, problem string) {
	if form.Get("client_assertion_type") != assertionType {
		return "", "client_assertion_type"
	}
	parts := strings.Split(form.Get("client_assertion"), ".")
	if len(parts) != 3 {
		return "", "the assertion is no JWT"
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	var c claims
	if decodePart(parts[0], &header) != nil || decodePart(parts[1], &c) != nil {
		return "", "the assertion is no JWT"
	}
	known := s.clients[c.Subject]
	now := s.o.Now()
	expires := time.Unix(int64(c.Expires), 0)
	switch {
	case c.Issuer == "" || c.Issuer != c.Subject:
		return "", "the assertion's iss and sub are not the client"
	case form.Has("client_id") && form.Get("client_id") != c.Subject:
		return "", "client_id is another than the assertion's sub"
	case known == nil || known.key == nil:
		return "", fmt.Sprintf("no key of client %q is known", c.Subject)
	case !isAudience(c.Audience, s.Issuer):
		return "", fmt.Sprintf("the assertion's aud %s is not the issuer", c.Audience)
	case !expires.After(now) || expires.After(now.Add(maxAssertion)):
		return "", fmt.Sprintf("the assertion's exp is %s from now", expires.Sub(now))
	case c.Issued != 0 && time.Unix(int64(c.Issued), 0).After(now.Add(time.Second)):
		return "", "the assertion was issued in the future"
	case c.ID == "" || s.seen[c.ID]:
		return "", "the assertion's jti is missing or was seen before"
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err == nil {
		err = verifySignature(known.key, header.Algorithm, []byte(parts[0]+"."+parts[1]), signature)
	}
	if err != nil {
		return "", "the assertion's signature: " + err.Error()
	}
	s.seen[c.ID] = true
	return c.Subject, ""
}

// isAudience reports whether the issuer is the only audience, as a string or in an array.
func isAudience(raw json.RawMessage, issuer string) bool {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one == issuer
	}
	var many []string
	return json.Unmarshal(raw, &many) == nil && len(many) == 1 && many[0] == issuer
}

func decodePart(part string, into any) error {
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// algorithms are the public-key algorithms of RFC 7518 §3.1 and RFC 8037.
var algorithms = []string{"ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA"}

// verifySignature verifies a signature according to RFC 7515 §5.2.
func verifySignature(key crypto.PublicKey, algorithm string, signed, signature []byte) error {
	if !slices.Contains(algorithms, algorithm) {
		return fmt.Errorf("is of algorithm %q", algorithm)
	}
	hash := map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}[algorithm[2:]]
	var sum []byte
	if hash != 0 {
		h := hash.New()
		h.Write(signed)
		sum = h.Sum(nil)
	}
	ok := false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		half := (k.Curve.Params().BitSize + 7) / 8
		bits := map[crypto.Hash]int{crypto.SHA256: 256, crypto.SHA384: 384, crypto.SHA512: 521}[hash]
		ok = algorithm[:2] == "ES" && k.Curve.Params().BitSize == bits && len(signature) == 2*half &&
			ecdsa.Verify(k, sum, new(big.Int).SetBytes(signature[:half]), new(big.Int).SetBytes(signature[half:]))
	case *rsa.PublicKey:
		switch algorithm[:2] {
		case "RS":
			ok = rsa.VerifyPKCS1v15(k, hash, sum, signature) == nil
		case "PS":
			ok = rsa.VerifyPSS(k, hash, sum, signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil
		}
	case ed25519.PublicKey:
		ok = algorithm == "EdDSA" && ed25519.Verify(k, signed, signature)
	default:
		return fmt.Errorf("a key of type %T", key)
	}
	if !ok {
		return fmt.Errorf("is not that of the key by %s", algorithm)
	}
	return nil
}
