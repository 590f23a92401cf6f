package signing

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/records"
)

// Binding returns the binding under which the key with this id is encrypted.
func Binding(id string) secret.Binding { return secret.Binding{Purpose: "signing.key.v1", Issuer: id} }

// key is a decrypted key that can sign.
type key struct {
	id        string
	private   ed25519.PrivateKey
	activates time.Time
	retires   *time.Time
}

// NewKey creates a key, encrypted for the database.
func NewKey(s *secret.Keyset) (records.SigningKey, error) {
	var seed [ed25519.SeedSize]byte
	_, _ = rand.Read(seed[:]) // crypto/rand never fails
	id := keyThumbprint(ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey))
	sealed, err := s.Seal(seed[:], Binding(id))
	return records.SigningKey{ID: id, Ciphertext: sealed}, err
}

// openKey decrypts a stored key. The key is bound to its own thumbprint, so that write access to the database is not
// sufficient to publish another key.
func openKey(s *secret.Keyset, k records.SigningKey) (*key, error) {
	seed, err := s.Open(k.Ciphertext, Binding(k.ID))
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", k.ID, err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("signing key %s: %w", k.ID, errors.New("it is no Ed25519 seed"))
	}
	opened := &key{id: k.ID, private: ed25519.NewKeyFromSeed(seed), activates: k.ActivatesAt, retires: k.RetiresAt}
	if keyThumbprint(opened.publicKey()) != k.ID {
		return nil, fmt.Errorf("signing key %s: %w", k.ID, errors.New("it is another key"))
	}
	return opened, nil
}

func (k *key) publicKey() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }

// keyThumbprint returns the id of a key: its JWK thumbprint (RFC 7638; for Ed25519 RFC 8037 appendix A.3).
func keyThumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(
		`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
