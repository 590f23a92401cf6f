package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Keyset encrypts and decrypts with AES-256-GCM. Ciphertexts contain the id of their key, so that keys can be rotated.
type Keyset struct {
	handle *keyset.Handle
	aead   tink.AEAD
}

// Binding identifies the owner and purpose of a ciphertext. Open succeeds only with the Binding that Seal used.
type Binding struct {
	Purpose  string // a constant of the caller with a version, such as "job.headers.v1"
	ChainID  uint64
	Registry string // IdentityRegistry, in any case
	AgentID  string // decimal
	Origin   string // for a token its netguard.CredentialOrigin; for a job's headers see job.HeaderBinding
	Scheme   string // bearer, header, oauth, …
	Header   string
	Issuer   string
	// Generation identifies the state of a database row, for a ciphertext that is stored outside of the row. Empty: the
	// ciphertext is stored in the row.
	Generation string
}

// associatedData encodes b unambiguously: every part is preceded by its length.
func (b Binding) associatedData() []byte {
	out := binary.BigEndian.AppendUint64(nil, b.ChainID)
	parts := []string{b.Purpose, strings.ToLower(b.Registry), b.AgentID, b.Origin, b.Scheme, b.Header, b.Issuer}
	if b.Generation != "" { // ciphertexts from before this field existed have no such part
		parts = append(parts, b.Generation)
	}
	for _, part := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		out = append(out, part...)
	}
	return out
}

// KeysetError reports that a keyset is unusable.
type KeysetError struct{ Problem string }

func (e *KeysetError) Error() string { return "keyset: " + e.Problem }

// DecryptError reports that a ciphertext cannot be decrypted: the keyset or the binding is a different one, or the
// bytes are damaged.
type DecryptError struct {
	Problem string
	KeyID   uint32 // id of the key that encrypted it, if the keyset lacks that key; else 0
}

func (e *DecryptError) Error() string { return "stored secret: " + e.Problem }

// Create returns a new keyset with one key.
func Create() (*Keyset, error) {
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return newKeyset(h)
}

// Parse decodes the output of Encode without a Master.
func Parse(text Secret) (*Keyset, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text.Reveal()))
	if err != nil {
		return nil, &KeysetError{"it is not base64; make one with `worker keys init`"}
	}
	h, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, &KeysetError{"it is not a Tink keyset; make one with `worker keys init`"}
	}
	return newKeyset(h)
}

func newKeyset(h *keyset.Handle) (*Keyset, error) {
	for _, info := range h.KeysetInfo().GetKeyInfo() {
		if info.GetOutputPrefixType() != tinkpb.OutputPrefixType_TINK {
			return nil, &KeysetError{fmt.Sprintf("its key %d has no TINK prefix, by which a ciphertext finds its key",
				info.GetKeyId())}
		}
	}
	a, err := aead.New(h)
	if err != nil {
		return nil, &KeysetError{"its keys do not encrypt (AEAD is needed)"}
	}
	return &Keyset{handle: h, aead: a}, nil
}

// Encode returns the keyset as text for Unwrap, encrypted by m. If m is nil, the text is the base64 of Tink's binary
// format, which allows decrypting everything that the keyset has encrypted.
func (k *Keyset) Encode(m Master) (Secret, error) {
	var raw bytes.Buffer
	prefix, w := "", keyset.NewBinaryWriter(&raw)
	var err error
	if m == nil {
		err = insecurecleartextkeyset.Write(k.handle, w)
	} else {
		prefix, err = wrappedPrefix, k.handle.WriteWithAssociatedData(w, m, wrappedFor)
	}
	if err != nil {
		return Secret{}, errors.New("encode the keyset") // err could contain key material
	}
	return New(prefix + base64.StdEncoding.EncodeToString(raw.Bytes())), nil
}

// String contains no key material. The same holds for every verb of fmt, by Format.
func (k *Keyset) String() string { return fmt.Sprintf("keyset with primary key %d", k.PrimaryID()) }

// Format implements fmt.Formatter.
func (k *Keyset) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// PrimaryID returns the id of the key that Seal uses.
func (k *Keyset) PrimaryID() uint32 { return k.handle.KeysetInfo().GetPrimaryKeyId() }

// Seal encrypts plain. Open needs the same Binding b.
func (k *Keyset) Seal(plain []byte, b Binding) ([]byte, error) {
	c, err := k.aead.Encrypt(plain, b.associatedData())
	if err != nil {
		return nil, errors.New("encrypt a secret")
	}
	return c, nil
}

// Open decrypts the output of Seal with the same binding. All its errors are *DecryptError.
func (k *Keyset) Open(cipher []byte, b Binding) ([]byte, error) {
	id, ok := KeyID(cipher)
	if !ok {
		return nil, &DecryptError{Problem: "it is no ciphertext of Herald's, or is cut short: store the secret again"}
	}
	plain, err := k.aead.Decrypt(cipher, b.associatedData())
	if err == nil {
		return plain, nil
	}
	if k.Has(id) {
		return nil, &DecryptError{Problem: "it was sealed for another agent, origin or header, " +
			"or is damaged: store the secret again"}
	}
	return nil, &DecryptError{KeyID: id, Problem: fmt.Sprintf("key %d sealed it, which is not in HERALD_KEYSET: "+
		"restore the keyset with this key, or store the secret again", id)}
}

// KeyID returns the id of the key that encrypted cipher. Tink's prefix is 0x01 followed by the id, big endian.
func KeyID(cipher []byte) (uint32, bool) {
	const prefix, nonce, tag = 5, 12, 16
	if len(cipher) < prefix+nonce+tag || cipher[0] != 1 {
		return 0, false
	}
	return binary.BigEndian.Uint32(cipher[1:prefix]), true
}
