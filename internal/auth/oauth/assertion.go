package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"

	"github.com/agentherald/herald/internal/base/secret"
)

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	// assertionLife is the validity of a signed assertion. It tolerates clock differences but limits the use of a
	// stolen assertion.
	assertionLife = 2 * time.Minute
	minRSA        = 2048 // bits (RFC 7518 §3.3)
)

// signer signs assertions with one key and one algorithm.
type signer struct {
	key       crypto.Signer
	algorithm string
}

// newSigner parses a key. If algorithm is empty, it selects the first algorithm of the key that is in taken, the
// server's list, or else the first of the key. Its errors are sentences without any part of the key.
func newSigner(text secret.Secret, algorithm string, taken []string) (*signer, error) {
	key, err := parseKey(text)
	if err != nil {
		return nil, err
	}
	can, err := listAlgorithms(key)
	if err != nil {
		return nil, err
	}
	if algorithm != "" {
		if !slices.Contains(can, algorithm) {
			return nil, fmt.Errorf("the key signs by %s and not by %q", strings.Join(can, ", "), excerpt(algorithm, 20))
		}
		return &signer{key: key, algorithm: algorithm}, nil
	}
	for _, a := range can {
		if slices.Contains(taken, a) {
			return &signer{key: key, algorithm: a}, nil
		}
	}
	return &signer{key: key, algorithm: can[0]}, nil
}

// parseKey parses the first private key in a PEM text.
func parseKey(text secret.Secret) (crypto.Signer, error) {
	raw := text.Reveal()
	if len(raw) > maxSecret {
		return nil, fmt.Errorf("the key is longer than %d bytes", maxSecret)
	}
	for rest := []byte(raw); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("the key is no private key in PEM (BEGIN PRIVATE KEY, EC PRIVATE KEY or " +
				"RSA PRIVATE KEY)")
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue // skip parameters and certificates before the key
		}
		if strings.HasPrefix(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("the key is encrypted with a passphrase: decrypt it, Herald stores it sealed")
		}
		return decodeKey(block.Bytes)
	}
}

// decodeKey decodes a private key in SEC 1, PKCS #1 or PKCS #8 form.
func decodeKey(der []byte) (crypto.Signer, error) {
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	s, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, errors.New("the key cannot be read: ECDSA, RSA and Ed25519 keys are known, as PKCS #8, " +
			"SEC 1 or PKCS #1")
	}
	return s, nil
}

// listAlgorithms returns the algorithms that a key can sign with, the preferred one first (RFC 7518 §3.1, RFC 8037
// §3.1).
func listAlgorithms(key crypto.Signer) ([]string, error) {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		switch k.Curve {
		case elliptic.P256():
			return []string{"ES256"}, nil
		case elliptic.P384():
			return []string{"ES384"}, nil
		case elliptic.P521():
			return []string{"ES512"}, nil
		}
		return nil, errors.New("the key's curve is not P-256, P-384 or P-521")
	case *rsa.PrivateKey:
		if k.N.BitLen() < minRSA {
			return nil, fmt.Errorf("the key is an RSA key of less than %d bits", minRSA)
		}
		return []string{"RS256", "PS256", "RS384", "PS384", "RS512", "PS512"}, nil
	case ed25519.PrivateKey:
		return []string{"EdDSA"}, nil
	}
	return nil, errors.New("the key is of a kind that does not sign assertions: use ECDSA, RSA or Ed25519")
}

// signAssertion returns a JWT by which the client authenticates (RFC 7523 §3). Its only audience is the issuer, so that
// no other server can use it, not even one that names this server's token endpoint.
func (s *signer) signAssertion(clientID, issuer, keyID string, now time.Time) (string, error) {
	claims, err := json.Marshal(struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Audience string `json:"aud"`
		ID       string `json:"jti"`
		Issued   int64  `json:"iat"`
		Expires  int64  `json:"exp"`
	}{clientID, clientID, issuer, rand.Text(), now.Unix(), now.Add(assertionLife).Unix()})
	header := jws.NewHeaders()
	err = errors.Join(err, header.Set(jws.TypeKey, "JWT"))
	if keyID != "" {
		err = errors.Join(err, header.Set(jws.KeyIDKey, keyID))
	}
	if err != nil {
		return "", fmt.Errorf("sign an assertion: %w", err)
	}
	algorithm, _ := jwa.LookupSignatureAlgorithm(s.algorithm)
	signed, err := jws.Sign(claims, jws.WithKey(algorithm, s.key, jws.WithProtectedHeaders(header)))
	if err != nil {
		return "", errors.New("the key does not sign") // err could contain a part of the key
	}
	return string(signed), nil
}
