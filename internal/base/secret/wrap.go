package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// Master encrypts a keyset, so that read access to the keyset is not sufficient to use it. It is called only at start.
// Tink's AEAD implements it, and so do Tink's clients of AWS, Google Cloud and HashiCorp Vault.
type Master interface {
	Encrypt(plain, associatedData []byte) ([]byte, error)
	Decrypt(cipher, associatedData []byte) ([]byte, error)
}

// wrappedPrefix precedes the base64 of a wrapped keyset. Base64 contains no colon, so that no unwrapped keyset starts
// with it.
const wrappedPrefix = "wrapped:"

// wrappedFor is the associated data of a wrapped keyset. It prevents other ciphertexts of the same master from being
// accepted as a keyset.
var wrappedFor = []byte("herald.keyset.v1")

// MasterKey returns a Master for a key of 32 bytes in base64 or hex (HERALD_MASTER_KEY). It uses XChaCha20-Poly1305.
// Its errors are *KeysetError.
func MasterKey(text Secret) (Master, error) {
	s := strings.TrimSpace(text.Reveal())
	key, err := hex.DecodeString(s)
	if err != nil {
		key, err = base64.StdEncoding.DecodeString(s)
	}
	if err != nil || len(key) != 32 {
		return nil, &KeysetError{"the master key is not 32 bytes in base64 or hex; `openssl rand -base64 32` makes one"}
	}
	m, err := subtle.NewXChaCha20Poly1305(key)
	if err != nil {
		return nil, &KeysetError{"the master key cannot be used"}
	}
	return m, nil
}

// IsWrapped reports whether a keyset is wrapped, so that Unwrap needs its Master.
func IsWrapped(text Secret) bool {
	return strings.HasPrefix(strings.TrimSpace(text.Reveal()), wrappedPrefix)
}

// Unwrap decodes the output of Encode. It decodes an unencrypted one regardless of m, because the operator chose not to
// wrap that keyset. Its errors are *KeysetError.
func Unwrap(text Secret, m Master) (*Keyset, error) {
	if !IsWrapped(text) {
		return Parse(text)
	}
	if m == nil {
		return nil,
			&KeysetError{"it is wrapped: set HERALD_MASTER_KEY or HERALD_MASTER_KEY_FILE to the key that opens it"}
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(text.Reveal()), wrappedPrefix))
	if err != nil {
		return nil, &KeysetError{"it is wrapped and cut short or damaged"}
	}
	h, err := keyset.ReadWithAssociatedData(keyset.NewBinaryReader(bytes.NewReader(raw)), m, wrappedFor)
	if err != nil {
		return nil, &KeysetError{"the master key does not open it: " +
			"HERALD_MASTER_KEY is another one than it was wrapped with, or it is damaged"}
	}
	return newKeyset(h)
}
