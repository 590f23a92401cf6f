package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// Master wraps a keyset, so that whoever reads it cannot use it. It is asked once, at start. Tink's AEAD has this
// form, and so have its clients of AWS, Google Cloud and HashiCorp Vault.
type Master interface {
	Encrypt(plain, associatedData []byte) ([]byte, error)
	Decrypt(cipher, associatedData []byte) ([]byte, error)
}

// wrappedPrefix stands before a keyset in base64 that only its master can open. No base64 holds a colon.
const wrappedPrefix = "wrapped:"

// wrappedFor is what a wrapped keyset is bound to, so that a ciphertext of the master's made for something else is
// none.
var wrappedFor = []byte("herald.keyset.v1")

// MasterKey makes a Master from 32 bytes in base64 or hex (HERALD_MASTER_KEY): XChaCha20-Poly1305. *KeysetError.
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

// WriteWrapped writes the keyset so that only m opens it.
func (k *Keyset) WriteWrapped(w io.Writer, m Master) error {
	var raw bytes.Buffer
	if err := k.handle.WriteWithAssociatedData(keyset.NewBinaryWriter(&raw), m, wrappedFor); err != nil {
		return errors.New("wrap the keyset with the master key")
	}
	_, err := io.WriteString(w, wrappedPrefix+base64.StdEncoding.EncodeToString(raw.Bytes()))
	return err
}

// IsWrapped tells whether a keyset needs its master.
func IsWrapped(text Secret) bool {
	return strings.HasPrefix(strings.TrimSpace(text.Reveal()), wrappedPrefix)
}

// Unwrap reads what WriteWrapped wrote, and with a nil or any Master what Write wrote: what is in clear was so by
// choice.
// *KeysetError.
func Unwrap(text Secret, m Master) (*Keyset, error) {
	if !IsWrapped(text) {
		return Parse(text)
	}
	if m == nil {
		return nil, &KeysetError{"it is wrapped: set HERALD_MASTER_KEY or HERALD_MASTER_KEY_FILE to the key that opens it"}
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(text.Reveal()), wrappedPrefix))
	if err != nil {
		return nil, &KeysetError{"it is wrapped and cut short or damaged"}
	}
	h, err := keyset.ReadWithAssociatedData(keyset.NewBinaryReader(bytes.NewReader(raw)), m, wrappedFor)
	if err != nil {
		return nil, &KeysetError{"the master key does not open it: HERALD_MASTER_KEY is another one than it was wrapped with, or it is damaged"}
	}
	return newKeyset(h)
}
